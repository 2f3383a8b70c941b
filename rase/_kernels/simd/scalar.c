#include "scalar.h"

#include "variant.h"

RASE_TABLE(scalar)

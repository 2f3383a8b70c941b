#include "neon.h"

#include "variant.h"

RASE_TABLE(neon)

#include "dotprod.h"

#include "variant.h"

RASE_TABLE(dotprod)

#include "avx2.h"

#include "variant.h"

RASE_TABLE(avx2)

#include "avx512.h"

#include "variant.h"

RASE_TABLE(avx512)

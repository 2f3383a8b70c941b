/* AVX-512 with VBMI and GFNI: the AVX-512 kernels, with codebooks in registers (lookup.h). */
#include "avx512.h"

#include "variant.h"

RASE_TABLE(avx512vbmi)

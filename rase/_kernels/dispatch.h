/* Which kernel variants this build has and this machine can run. */
#ifndef RASE_DISPATCH_H
#define RASE_DISPATCH_H

#include "kernels.h"

int rase_variant_count(void);                       /* variants in the build, weakest first */
const char *rase_variant_name(int index);
const rase_kernels *rase_variant(int index);
const rase_tiles *rase_variant_tiles(int index);    /* NULL where the variant has none */
const char *rase_variant_missing(int index);        /* NULL when this machine runs it, else what is missing */

#endif

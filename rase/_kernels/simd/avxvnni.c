#include "avxvnni.h"

#include "variant.h"

RASE_TABLE(avxvnni)

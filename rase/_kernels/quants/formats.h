/* The table of formats: one header each, one line each. */
#define RASE_FORMATS {0}

/* Five digits in base 3 as a byte, for trits.h: the first two depend on its bits 0 to 5, the next two on bits 2 to 7, the last on six
 * sums of bits. Found by simulated annealing. */
#ifndef RASE_QUANTS_TRIT_BYTES_H
#define RASE_QUANTS_TRIT_BYTES_H

/* Which bits: sum k of them is bit k of an index, byte 7 - k of the matrix of GF2P8AFFINEQB. */
#define TRIT_SUMS 0x0204214888190000
/* By those bits and sums: the first of two digits plus three times the second; the last digit. */
#define TRIT_FIRST_LIST(X) \
    X(2) X(3) X(2) X(7) X(4) X(5) X(7) X(0) X(3) X(7) X(0) X(5) X(8) X(1) X(3) X(2) \
    X(4) X(7) X(0) X(7) X(1) X(8) X(3) X(5) X(5) X(3) X(7) X(5) X(8) X(4) X(5) X(6) \
    X(2) X(8) X(4) X(6) X(1) X(1) X(8) X(0) X(3) X(0) X(4) X(6) X(7) X(6) X(0) X(4) \
    X(5) X(6) X(3) X(1) X(6) X(1) X(3) X(2) X(4) X(8) X(0) X(6) X(1) X(8) X(2) X(2)
#define TRIT_SECOND_LIST(X) \
    X(1) X(4) X(5) X(0) X(7) X(1) X(7) X(8) X(2) X(2) X(6) X(4) X(4) X(1) X(7) X(3) \
    X(4) X(5) X(2) X(4) X(0) X(3) X(8) X(4) X(5) X(4) X(0) X(8) X(0) X(2) X(3) X(6) \
    X(5) X(2) X(6) X(8) X(6) X(1) X(3) X(6) X(5) X(8) X(7) X(1) X(6) X(7) X(3) X(7) \
    X(8) X(1) X(0) X(6) X(3) X(7) X(2) X(0) X(2) X(5) X(8) X(6) X(5) X(3) X(1) X(0)
#define TRIT_LAST_LIST(X) \
    X(0) X(2) X(1) X(1) X(1) X(2) X(2) X(0) X(2) X(0) X(1) X(0) X(0) X(2) X(1) X(1) \
    X(2) X(1) X(0) X(0) X(1) X(0) X(0) X(1) X(2) X(0) X(2) X(0) X(2) X(1) X(1) X(1) \
    X(1) X(0) X(0) X(2) X(1) X(1) X(2) X(0) X(0) X(1) X(0) X(2) X(0) X(0) X(2) X(0) \
    X(2) X(0) X(2) X(2) X(1) X(1) X(2) X(1) X(2) X(1) X(2) X(2) X(0) X(0) X(2) X(1)

/* Tables of `one` for a level of 1, twice that for 2. */
#define TRIT_ONE_1(x) (x) % 3,
#define TRIT_ONE_3(x) (x) / 3,
#define TRIT_EIGHT_1(x) 8 * ((x) % 3),
#define TRIT_EIGHT_3(x) 8 * ((x) / 3),
#define TRIT_TABLES(KIND)                                                                                                     \
    {{{TRIT_FIRST_LIST(KIND##_1)}, {TRIT_FIRST_LIST(KIND##_3)}}, {{TRIT_SECOND_LIST(KIND##_1)}, {TRIT_SECOND_LIST(KIND##_3)}}, \
     {TRIT_LAST_LIST(KIND##_1)}}

/* The byte of digits a b c d e: number 81a + 27b + 9c + 3d + e. */
static const uint8_t trit_bytes[243] = {
    202, 82, 105, 122, 210, 186, 146, 138, 41, 174, 199, 250, 7, 46, 103, 18, 58, 169, 74, 135, 39, 71, 10, 231,
    233, 110, 167, 114, 104, 14, 153, 246, 86, 40, 178, 206, 54, 1, 22, 65, 50, 78, 25, 182, 214, 118, 217, 72,
    242, 129, 8, 193, 89, 142, 223, 107, 113, 123, 187, 244, 43, 237, 177, 251, 173, 52, 49, 95, 45, 171, 59, 180,
    35, 227, 116, 163, 99, 241, 109, 31, 235, 115, 13, 252, 84, 60, 245, 124, 179, 205, 20, 53, 148, 77, 100, 51,
    181, 188, 212, 37, 117, 36, 243, 228, 229, 164, 141, 165, 80, 106, 221, 184, 120, 208, 42, 239, 144, 175, 248, 196,
    47, 4, 93, 170, 16, 56, 132, 226, 34, 162, 68, 98, 111, 234, 29, 81, 201, 83, 154, 211, 209, 137, 145, 236,
    198, 3, 172, 67, 6, 44, 26, 17, 19, 134, 73, 218, 70, 131, 9, 195, 90, 108, 254, 15, 255, 247, 62, 63,
    207, 126, 127, 0, 55, 2, 66, 79, 64, 183, 190, 191, 119, 32, 224, 96, 130, 128, 194, 143, 192, 112, 222, 203,
    155, 87, 152, 158, 176, 139, 23, 151, 197, 94, 48, 5, 27, 215, 24, 75, 219, 133, 240, 11, 69, 30, 91, 88,
    253, 220, 12, 185, 85, 61, 204, 156, 125, 149, 249, 21, 92, 102, 76, 189, 213, 57, 38, 33, 225, 97, 230, 161,
    140, 166, 28,
};

#endif

/* Five digits in base 3 as a byte, for trits.h: the first two depend on its bits 2 to 7, the next two on all but bits 2 and 3, the last on
 * bits 0 to 6. Found by simulated annealing. */
#ifndef RASE_QUANTS_TRIT_BYTES_H
#define RASE_QUANTS_TRIT_BYTES_H

/* By those bits: the first of two digits plus three times the second; the last digit. */
#define TRIT_FIRST_LIST(X) \
    X(5) X(7) X(4) X(2) X(0) X(5) X(7) X(2) X(1) X(2) X(5) X(0) X(8) X(4) X(3) X(6) \
    X(6) X(1) X(2) X(4) X(4) X(5) X(8) X(1) X(1) X(6) X(3) X(0) X(0) X(7) X(2) X(8) \
    X(2) X(7) X(7) X(5) X(6) X(1) X(8) X(7) X(5) X(0) X(2) X(1) X(3) X(8) X(5) X(4) \
    X(3) X(5) X(0) X(8) X(6) X(1) X(3) X(4) X(3) X(4) X(7) X(6) X(8) X(3) X(6) X(0)
#define TRIT_SECOND_LIST(X) \
    X(1) X(6) X(8) X(6) X(4) X(1) X(7) X(5) X(2) X(6) X(7) X(1) X(7) X(6) X(1) X(7) \
    X(5) X(0) X(8) X(4) X(0) X(8) X(2) X(4) X(8) X(4) X(7) X(6) X(8) X(3) X(2) X(0) \
    X(2) X(7) X(4) X(0) X(3) X(5) X(1) X(6) X(5) X(3) X(3) X(7) X(5) X(7) X(4) X(3) \
    X(5) X(8) X(0) X(6) X(1) X(0) X(2) X(3) X(5) X(2) X(8) X(3) X(2) X(1) X(4) X(0)
#define TRIT_LAST_LIST(X) \
    X(0) X(0) X(2) X(1) X(1) X(2) X(2) X(1) X(0) X(1) X(1) X(0) X(2) X(1) X(1) X(2) \
    X(2) X(2) X(0) X(0) X(0) X(1) X(2) X(0) X(0) X(2) X(0) X(2) X(0) X(1) X(0) X(0) \
    X(1) X(2) X(1) X(1) X(1) X(0) X(1) X(0) X(1) X(1) X(2) X(2) X(2) X(2) X(1) X(0) \
    X(1) X(1) X(1) X(0) X(0) X(2) X(1) X(2) X(2) X(0) X(0) X(0) X(2) X(1) X(2) X(0) \
    X(0) X(1) X(1) X(1) X(0) X(1) X(1) X(2) X(2) X(2) X(0) X(1) X(1) X(2) X(0) X(0) \
    X(1) X(2) X(1) X(1) X(0) X(0) X(0) X(2) X(2) X(0) X(2) X(2) X(2) X(0) X(2) X(1) \
    X(2) X(0) X(2) X(1) X(0) X(0) X(1) X(2) X(0) X(2) X(0) X(2) X(1) X(0) X(2) X(0) \
    X(0) X(2) X(0) X(2) X(1) X(1) X(0) X(2) X(2) X(0) X(2) X(0) X(1) X(1) X(1) X(1)

/* Tables of `one` for a level of 1, twice that for 2. */
#define TRIT_ONE_1(x) (x) % 3,
#define TRIT_ONE_3(x) (x) / 3,
#define TRIT_FOUR_1(x) 4 * ((x) % 3),
#define TRIT_FOUR_3(x) 4 * ((x) / 3),
#define TRIT_EIGHT_1(x) 8 * ((x) % 3),
#define TRIT_EIGHT_3(x) 8 * ((x) / 3),
#define TRIT_TABLES(KIND)                                                                                                     \
    {{{TRIT_FIRST_LIST(KIND##_1)}, {TRIT_FIRST_LIST(KIND##_3)}}, {{TRIT_SECOND_LIST(KIND##_1)}, {TRIT_SECOND_LIST(KIND##_3)}}, \
     {TRIT_LAST_LIST(KIND##_1)}}

/* The byte of digits a b c d e: number 81a + 27b + 9c + 3d + e. */
static const uint8_t trit_bytes[243] = {
    202, 255, 115, 165, 166, 113, 111, 203, 45, 47, 253, 17, 109, 254, 16, 18, 46, 110, 114, 252, 44, 19, 164, 200,
    112, 108, 201, 217, 194, 247, 179, 227, 219, 57, 195, 107, 58, 245, 216, 246, 178, 105, 59, 177, 56, 225, 244, 218,
    192, 176, 224, 104, 193, 226, 251, 65, 209, 239, 211, 144, 147, 61, 103, 146, 208, 62, 101, 67, 250, 63, 102, 60,
    237, 210, 248, 64, 236, 145, 100, 66, 238, 213, 69, 92, 148, 174, 173, 151, 99, 33, 212, 35, 150, 97, 95, 71,
    175, 34, 98, 214, 32, 94, 68, 149, 172, 93, 70, 96, 221, 80, 77, 191, 223, 231, 11, 9, 53, 8, 54, 220,
    79, 83, 190, 52, 189, 55, 229, 82, 222, 228, 76, 188, 78, 10, 81, 139, 135, 119, 156, 117, 235, 159, 7, 5,
    158, 4, 25, 24, 138, 134, 26, 137, 133, 118, 132, 233, 232, 157, 27, 234, 116, 6, 123, 131, 73, 121, 169, 170,
    37, 13, 15, 39, 29, 12, 28, 75, 130, 30, 38, 171, 128, 36, 122, 31, 168, 72, 74, 14, 120, 84, 198, 143,
    187, 162, 161, 1, 3, 199, 0, 21, 43, 20, 142, 87, 185, 141, 22, 86, 40, 140, 23, 160, 184, 85, 197, 2,
    206, 127, 88, 152, 125, 183, 207, 49, 155, 154, 50, 241, 242, 182, 91, 51, 48, 181, 240, 126, 90, 180, 204, 153,
    89, 124, 205,
};

#endif

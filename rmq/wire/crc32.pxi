# The CRC of zlib and Java, for compiled modules, without a call of Python: 16 table steps of a byte at a time, or
# carry-less multiplication where the processor has it (80 and 35 ns for 200 bytes; calling zlib takes 200).

from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    static uint32_t rmq_crc_table[16][256];

    static void rmq_crc_tables(void) {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t c = byte;
            for (int bit = 0; bit < 8; bit++) c = c & 1 ? c >> 1 ^ 0xEDB88320u : c >> 1;
            rmq_crc_table[0][byte] = c;
        }
        for (int byte = 0; byte < 256; byte++)
            for (int step = 1; step < 16; step++) {
                uint32_t c = rmq_crc_table[step - 1][byte];
                rmq_crc_table[step][byte] = c >> 8 ^ rmq_crc_table[0][c & 255];
            }
    }

    #define RMQ_STEP(t, p) (rmq_crc_table[t][(p)[0]] ^ rmq_crc_table[t - 1][(p)[1]] \\
        ^ rmq_crc_table[t - 2][(p)[2]] ^ rmq_crc_table[t - 3][(p)[3]])

    /* continues the inverted CRC c */
    static inline uint32_t rmq_crc_on(uint32_t c, const uint8_t *p, int64_t n) {
        while (n >= 16) {
            const uint8_t q[4] = {p[0] ^ (uint8_t) c, p[1] ^ (uint8_t) (c >> 8), p[2] ^ (uint8_t) (c >> 16),
                                  p[3] ^ (uint8_t) (c >> 24)};
            c = RMQ_STEP(15, q) ^ RMQ_STEP(11, p + 4) ^ RMQ_STEP(7, p + 8) ^ RMQ_STEP(3, p + 12);
            p += 16; n -= 16;
        }
        while (n-- > 0) c = c >> 8 ^ rmq_crc_table[0][(c ^ *p++) & 255];
        return c;
    }

    static uint32_t rmq_crc_plain(const uint8_t *p, int64_t n) { return ~rmq_crc_on(~0u, p, n); }

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    /* x^(8 * distance + 32) and x^(8 * distance - 32) modulo the polynomial, bits reversed, for 64 and 16 bytes */
    #define RMQ_FOLD(x, k, y) _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), \\
        _mm_clmulepi64_si128(x, k, 0x11)), y)
    #define RMQ_LOAD(p) _mm_loadu_si128((const __m128i *) (p))
    __attribute__((target("pclmul,sse4.1")))
    static uint32_t rmq_crc_folded(const uint8_t *p, int64_t n) {
        if (n < 64) return rmq_crc_plain(p, n);
        __m128i a = RMQ_LOAD(p), b = RMQ_LOAD(p + 16), c = RMQ_LOAD(p + 32), d = RMQ_LOAD(p + 48);
        __m128i by64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), by16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
        a = _mm_xor_si128(a, _mm_cvtsi32_si128(-1));
        for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
            a = RMQ_FOLD(a, by64, RMQ_LOAD(p)); b = RMQ_FOLD(b, by64, RMQ_LOAD(p + 16));
            c = RMQ_FOLD(c, by64, RMQ_LOAD(p + 32)); d = RMQ_FOLD(d, by64, RMQ_LOAD(p + 48));
        }
        a = RMQ_FOLD(a, by16, b); a = RMQ_FOLD(a, by16, c); a = RMQ_FOLD(a, by16, d);
        for (; n >= 16; p += 16, n -= 16) a = RMQ_FOLD(a, by16, RMQ_LOAD(p));
        uint8_t rest[16];
        _mm_storeu_si128((__m128i *) rest, a);
        return ~rmq_crc_on(rmq_crc_on(0, rest, 16), p, n);
    }
    static int rmq_can_fold(void) { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }
    #else
    static uint32_t rmq_crc_folded(const uint8_t *p, int64_t n) { return rmq_crc_plain(p, n); }
    static int rmq_can_fold(void) { return 0; }
    #endif
    """
    void rmq_crc_tables() noexcept nogil
    uint32_t rmq_crc_plain(const uint8_t *p, int64_t n) noexcept nogil
    uint32_t rmq_crc_folded(const uint8_t *p, int64_t n) noexcept nogil
    int rmq_can_fold() noexcept nogil

ctypedef uint32_t (*Crc)(const uint8_t *p, int64_t n) noexcept nogil

rmq_crc_tables()
cdef Crc crc_of = rmq_crc_folded if rmq_can_fold() else rmq_crc_plain

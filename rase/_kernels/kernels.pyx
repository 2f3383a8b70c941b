"""The kernel variants of this build, and every kernel as a call on arrays.

A running model never comes through here: `program.pyx` takes a variant's C table. Tests, the loader (packing) and
`rase runtime probe` do. What a kernel computes is stated in kernels.h.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

cdef extern from "dispatch.h" nogil:
    int rase_variant_count()
    const char *rase_variant_name(int index)
    const rase_kernels *rase_variant(int index)
    const rase_tiles *rase_variant_tiles(int index)
    const char *rase_variant_missing(int index)

cdef extern from "fpenv.h" nogil:
    uint64_t rase_fp_enter()
    void rase_fp_leave(uint64_t)


def float_environment():
    """The calling thread's float control register (for tests)."""
    cdef uint64_t state = rase_fp_enter()
    rase_fp_leave(state)
    return state


def set_float_environment(uint64_t state):
    """Set the calling thread's float control register, as a careless host library would (for tests)."""
    rase_fp_leave(state)


def variants():
    """Return ``[(name, missing)]``, weakest first; ``missing`` is None or the feature that this machine lacks."""
    found = []
    cdef int index
    cdef const char *missing
    for index in range(rase_variant_count()):
        missing = rase_variant_missing(index)
        found.append((rase_variant_name(index).decode(), None if missing == NULL else missing.decode()))
    return found


cdef uintptr_t _aligned(uint8_t[::1] memory) noexcept:
    return (<uintptr_t>&memory[0] + 63) & ~<uintptr_t>63


cdef class Variant:
    """One instruction set's kernels. Raises ValueError for a name that is not built or does not run here."""

    def __cinit__(self, str name not None):
        for index, (known, missing) in enumerate(variants()):
            if known == name:
                if missing is not None:
                    raise ValueError(f"{name} needs {missing}")
                self.index, self.table, self.tiles = index, rase_variant(index), rase_variant_tiles(index)
                return
        raise ValueError(f"no variant {name}")

    @property
    def name(self):
        return rase_variant_name(self.index).decode()

    @property
    def rows_per_group(self):
        """R: rows of a matrix that are interleaved into one packed group."""
        return self.table.rows_per_group

    @property
    def has_tiles(self):
        """Whether prompt tokens can be multiplied in bf16 tiles."""
        return self.tiles != NULL

    cdef const rase_format *format(self, int format_id) except NULL:
        cdef const rase_format *found = NULL
        if 0 <= format_id < RASE_MAX_FORMAT:
            found = self.table.formats[format_id]
        if found == NULL:
            raise ValueError(f"no kernel for format {format_id}")
        return found

    def supports(self, int format_id):
        return 0 <= format_id < RASE_MAX_FORMAT and self.table.formats[format_id] != NULL

    def packed_bytes(self, int format_id, int64_t rows, int64_t cols):
        """Bytes of a packed matrix: groups of R rows, the last one padded."""
        cdef int r = self.table.rows_per_group
        return (rows + r - 1) // r * self.format(format_id).group_bytes(cols)

    def activation_kind(self, int format_id):
        """'f32', 'q16_32' or 'q16_256': what the format's integer path multiplies with."""
        return ("f32", "q16_32", "q16_256")[self.format(format_id).act]

    def pack(self, int format_id, const uint8_t[::1] data, int64_t rows, int64_t cols, uint8_t[::1] out):
        """Pack the file bytes of a (rows, cols) matrix into ``out`` (``packed_bytes`` long, 64-byte aligned)."""
        cdef const rase_format *fmt = self.format(format_id)
        cdef int64_t r = self.table.rows_per_group, groups = (rows + r - 1) // r, g
        cdef size_t group_bytes = fmt.group_bytes(cols)
        if rows < 1 or cols < 1 or data.shape[0] % rows or out.shape[0] != groups * <int64_t>group_bytes:
            raise ValueError("sizes of data or out do not fit the matrix")
        cdef size_t row_bytes = data.shape[0] // rows
        cdef const uint8_t *source = &data[0]
        cdef uint8_t *target = &out[0]
        with nogil:
            for g in range(groups):
                fmt.pack(source + g * r * row_bytes, row_bytes, <int>(r if rows - g * r > r else rows - g * r), cols,
                         target + g * group_bytes)

    def rows(self, int format_id, const uint8_t[::1] packed, int64_t cols, const int64_t[::1] which, float[:, ::1] out):
        """Dequantize the rows ``which`` of a packed matrix into ``out`` (len(which), cols)."""
        cdef const rase_format *fmt = self.format(format_id)
        cdef int64_t r = self.table.rows_per_group, i
        cdef size_t group_bytes = fmt.group_bytes(cols)
        if out.shape[0] != which.shape[0] or out.shape[1] != cols:
            raise ValueError("out must be (len(which), cols)")
        for i in range(which.shape[0]):
            if not 0 <= which[i] < packed.shape[0] // <int64_t>group_bytes * r:
                raise IndexError(which[i])
            fmt.row(&packed[0] + which[i] // r * group_bytes, <int>(which[i] % r), cols, &out[i, 0])

    def panel(self, int format_id, const uint8_t[::1] packed, int64_t cols, int64_t group, int64_t k0, int64_t k1,
              float[:, ::1] out):
        """Dequantize depths [k0, k1) of one group into ``out`` (k1 - k0, R)."""
        cdef const rase_format *fmt = self.format(format_id)
        if (out.shape[0] != k1 - k0 or out.shape[1] != self.table.rows_per_group or k0 % fmt.block
                or not 0 <= k0 < k1 <= cols):
            raise ValueError("out must be (k1 - k0, R)")
        fmt.panel(&packed[0] + group * fmt.group_bytes(cols), cols, k0, k1, &out[0, 0])

    def linear(self, int format_id, const uint8_t[::1] packed, int64_t rows, const float[:, ::1] x, float[:, ::1] out,
               int64_t first_group=0, int64_t last_group=-1):
        """out (m, groups * R) = x (m, cols) times the packed matrix, by the format's own path (R1 or R2)."""
        cdef const rase_format *fmt = self.format(format_id)
        cdef int64_t m = x.shape[0], cols = x.shape[1], r = self.table.rows_per_group, i
        cdef size_t group_bytes = fmt.group_bytes(cols)
        if last_group < 0:
            last_group = (rows + r - 1) // r
        if out.shape[0] != m or out.shape[1] < last_group * r or packed.shape[0] < last_group * <int64_t>group_bytes:
            raise ValueError("out must be (m, groups * R)")
        cdef rase_act act
        cdef int64_t room = (m + 7) * cols
        cdef int8_t *q = <int8_t *>malloc(2 * room)
        cdef int16_t *both = <int16_t *>malloc(2 * room)
        cdef float *d = <float *>malloc(4 * room), *dsums = <float *>malloc(4 * room)
        cdef void *s = malloc(8 * room)
        if q == NULL or both == NULL or d == NULL or dsums == NULL or s == NULL:
            free(q); free(both); free(d); free(dsums); free(s)
            raise MemoryError
        memset(&act, 0, sizeof(act))
        act.f32, act.f32_stride, act.q, act.wide, act.d, act.dsums = &x[0, 0], cols, q, both, d, dsums
        act.sums, act.sides = <int32_t *>s, <int16_t *>s
        for i in range(m):
            if fmt.act == RASE_ACT_Q16_32:
                self.table.quantize_32(&x[i, 0], cols, q + 2 * i * cols, both + RASE_WIDE_AT(i, cols),
                                       d + i * (cols // 32), <int32_t *>s + 2 * i * (cols // 32),
                                       dsums + i * (cols // 32))
            elif fmt.act == RASE_ACT_Q16_256:
                self.table.quantize_256(&x[i, 0], cols, q + 2 * i * cols, both + RASE_WIDE_AT(i, cols),
                                        d + i * (cols // 256), <int16_t *>s + i * (cols // 256) * RASE_SIDES)
        with nogil:
            fmt.dot(&packed[0] + first_group * group_bytes, last_group - first_group, cols, &act, 0, m,
                    &out[0, first_group * r], out.shape[1])
            if self.tiles != NULL:
                self.tiles.end()
        free(q); free(both); free(d); free(dsums); free(s)

    def quantize_32(self, const float[::1] x, int8_t[::1] q, int16_t[::1] wide, float[::1] d, int32_t[::1] sums,
                    float[::1] dsums):
        """Quantize one row in blocks of 32; array sizes as in kernels.h."""
        cdef int64_t n = x.shape[0]
        if (n % 32 or q.shape[0] != 2 * n or wide.shape[0] != 4 * n or d.shape[0] != n // 32 or sums.shape[0] != n // 16
                or dsums.shape[0] != n // 32):
            raise ValueError("sizes do not fit")
        self.table.quantize_32(&x[0], n, &q[0], &wide[0], &d[0], &sums[0], &dsums[0])

    def quantize_256(self, const float[::1] x, int8_t[::1] q, int16_t[::1] wide, float[::1] d, int16_t[::1] sides):
        """Quantize one row in blocks of 256; array sizes as in kernels.h."""
        cdef int64_t n = x.shape[0]
        if (n % 256 or q.shape[0] != 2 * n or wide.shape[0] != 4 * n or d.shape[0] != n // 256
                or sides.shape[0] != RASE_SIDES * (n // 256)):
            raise ValueError("sizes do not fit")
        self.table.quantize_256(&x[0], n, &q[0], &wide[0], &d[0], &sides[0])

    def gemm_f32(self, const float[:, ::1] panel, const float[:, ::1] a, float[:, ::1] out):
        """out (m, R) = a (m, depth) times panel (depth, R)."""
        if (panel.shape[1] != self.table.rows_per_group or a.shape[1] != panel.shape[0]
                or out.shape[0] != a.shape[0] or out.shape[1] != panel.shape[1]):
            raise ValueError("sizes do not fit")
        self.table.gemm_f32(&panel[0, 0], panel.shape[0], &a[0, 0], a.shape[1], a.shape[0], &out[0, 0], out.shape[1])

    def tiles_linear(self, int format_id, const uint8_t[::1] packed, int64_t rows, const float[:, ::1] x,
                     float[:, ::1] out, int64_t steps, int64_t block):
        """out (m, groups * 16) = x (m, cols) times the packed matrix in bf16 tiles.

        ``steps`` of 32 depths (a multiple of 8) and ``block`` groups at a time, unless rows are few; with 8 steps these
        may take the other side. For tests; plan.pyx has what models run.
        """
        cdef const rase_format *fmt = self.format(format_id)
        cdef int64_t m = x.shape[0], cols = x.shape[1], groups = (rows + 15) // 16, total = (cols + 31) // 32
        cdef int64_t i, j, g, n, part, s, count
        if self.tiles == NULL or steps < 8 or steps % 8 or block < 1 or out.shape[0] != m or out.shape[1] < groups * 16:
            raise ValueError("no tiles, or sizes do not fit")
        left, turned = bytearray(RASE_TILES_LEFT(m, cols) + 64), bytearray(RASE_TILES_LEFT(m, cols) + 64)
        right = bytearray(block * steps * RASE_TILE_BYTES + 64)
        sums = bytearray(4 * RASE_TILE_SUMS(m, block) + 64)
        cdef uint8_t *a = <uint8_t *>_aligned(left)
        cdef uint8_t *b = <uint8_t *>_aligned(right)
        cdef uint8_t *t = <uint8_t *>_aligned(turned) if steps == 8 else NULL
        cdef float *c = <float *>_aligned(sums)
        with nogil:
            self.tiles.begin()
            for i in range(m):
                self.tiles.left(&x[i, 0], cols, i, a)
            if m <= 16 * RASE_FEW_TILES:
                self.tiles.few(fmt, &packed[0], groups, cols, a, m, t, &out[0, 0], out.shape[1])
                groups = 0
            for j in range((groups + block - 1) // block):
                g = j * block
                n = min(block, groups - g)
                for part in range((total + steps - 1) // steps):
                    s = part * steps
                    count = min(steps, total - s)
                    for i in range(n):
                        self.tiles.right(fmt, &packed[0] + (g + i) * fmt.group_bytes(cols), cols, 32 * s,
                                         min(cols, 32 * (s + count)), b + i * count * RASE_TILE_BYTES)
                    self.tiles.multiply(a, total, s, count, m, b, n, c, &out[0, 16 * g], out.shape[1])
            self.tiles.end()

    def rms_norm(self, const float[::1] x, const float[::1] weight, float eps, float[::1] out):
        if x.shape[0] % weight.shape[0] or out.shape[0] != x.shape[0]:
            raise ValueError("sizes do not fit")
        self.table.rms_norm(&x[0], &weight[0], x.shape[0], weight.shape[0], eps, &out[0])

    def layer_norm(self, const float[::1] x, const float[::1] weight, float eps, float[::1] out):
        if weight.shape[0] != x.shape[0] or out.shape[0] != x.shape[0]:
            raise ValueError("sizes do not fit")
        self.table.layer_norm(&x[0], &weight[0], x.shape[0], eps, &out[0])

    def unary(self, str name, const float[::1] x, float[::1] out):
        """'exp', 'silu', 'sigmoid', 'gelu', 'gelu_tanh' or 'tanh', elementwise."""
        if out.shape[0] != x.shape[0]:
            raise ValueError("sizes do not fit")
        if name == "exp":
            self.table.exp(&x[0], x.shape[0], &out[0])
        elif name == "silu":
            self.table.silu(&x[0], x.shape[0], &out[0])
        elif name == "sigmoid":
            self.table.sigmoid(&x[0], x.shape[0], &out[0])
        elif name == "gelu":
            self.table.gelu(&x[0], x.shape[0], &out[0])
        elif name == "gelu_tanh":
            self.table.gelu_tanh(&x[0], x.shape[0], &out[0])
        elif name == "tanh":
            self.table.tanh(&x[0], x.shape[0], &out[0])
        else:
            raise ValueError(name)

    def soft_cap(self, const float[::1] x, float cap, float[::1] out):
        """cap * tanh(x / cap), elementwise."""
        if out.shape[0] != x.shape[0]:
            raise ValueError("sizes do not fit")
        self.table.soft_cap(&x[0], cap, x.shape[0], &out[0])

    def binary(self, str name, const float[::1] a, const float[::1] b, float[::1] out):
        """'add', 'mul' or 'silu_mul', elementwise."""
        if a.shape[0] != b.shape[0] or a.shape[0] != out.shape[0]:
            raise ValueError("sizes do not fit")
        if name == "add":
            self.table.add(&a[0], &b[0], a.shape[0], &out[0])
        elif name == "mul":
            self.table.mul(&a[0], &b[0], a.shape[0], &out[0])
        elif name == "silu_mul":
            self.table.silu_mul(&a[0], &b[0], a.shape[0], &out[0])
        else:
            raise ValueError(name)

    def add_scaled(self, const float[::1] x, float factor, float[::1] out):
        """out += factor * x, elementwise."""
        if x.shape[0] != out.shape[0]:
            raise ValueError("sizes do not fit")
        self.table.add_scaled(&x[0], factor, x.shape[0], &out[0])

    def route(self, const float[::1] logits, bint renormalize, float scale, float[::1] out):
        """The experts of one token: out (2k,) is their ids ascending, then their gates."""
        if out.shape[0] % 2 or not 0 < out.shape[0] // 2 <= logits.shape[0]:
            raise ValueError("sizes do not fit")
        self.table.route(&logits[0], logits.shape[0], out.shape[0] // 2, renormalize, scale, &out[0])

    def rotate(self, float[:, ::1] heads, const float[::1] cos, const float[::1] sin, bint neighbour):
        """Rotate heads (n_heads, head_dim) in place; cos, sin (n_dims / 2,)."""
        if cos.shape[0] != sin.shape[0] or 2 * cos.shape[0] > heads.shape[1]:
            raise ValueError("sizes do not fit")
        self.table.rotate(&heads[0, 0], heads.shape[0], heads.shape[1], 2 * cos.shape[0], neighbour, &cos[0], &sin[0])

    def l2_norm(self, const float[::1] x, int64_t group, float eps, float[::1] out):
        """Each ``group`` elements over their length."""
        if group < 1 or x.shape[0] % group or out.shape[0] != x.shape[0]:
            raise ValueError("sizes do not fit")
        self.table.l2_norm(&x[0], x.shape[0], group, eps, &out[0])

    def decay(self, const float[::1] x, const float[::1] rate, const float[::1] bias, float[::1] out):
        """exp(rate * log(1 + exp(x + bias))), elementwise."""
        if not x.shape[0] == rate.shape[0] == bias.shape[0] == out.shape[0]:
            raise ValueError("sizes do not fit")
        self.table.decay(&x[0], &rate[0], &bias[0], x.shape[0], &out[0])

    def delta_rule(self, const float[:, ::1] q, const float[:, ::1] k, const float[:, ::1] v, const float[::1] decay,
                   const float[::1] beta, float scale, float[:, ::1] state, float[:, ::1] out):
        """One value head: q, k (tokens, k_dim); v, out (tokens, v_dim); decay, beta (tokens,).

        state (k_dim, v_dim) lies in blocks of columns: ops/recurrent.h.
        """
        cdef rase_delta_task task
        cdef int64_t n = q.shape[0], keys = q.shape[1], values = v.shape[1]
        if not (k.shape[0] == v.shape[0] == out.shape[0] == decay.shape[0] == beta.shape[0] == n):
            raise ValueError("sizes do not fit")
        if (k.shape[1], state.shape[0], state.shape[1], out.shape[1]) != (keys, keys, values, values):
            raise ValueError("sizes do not fit")
        task.q, task.k, task.v, task.decay, task.beta = &q[0, 0], &k[0, 0], &v[0, 0], &decay[0], &beta[0]
        task.out, task.state, task.scale = &out[0, 0], &state[0, 0], scale
        task.q_stride = task.k_stride = keys
        task.v_stride = task.out_stride = values
        task.decay_stride = task.beta_stride = 1
        task.n_tokens, task.k_dim, task.v_dim = n, keys, values
        self.table.delta_rule(&task)

    def kv_store(self, int kv, const float[::1] x, uint8_t[::1] run, int64_t slot):
        """Store one row of K or V (head_dim,) in slot 0 to 31 of a head's run of bytes in a page."""
        cdef int64_t stride = (x.shape[0] + 15) // 16 * 16
        if not 0 <= kv < RASE_KV_FORMATS or not 0 <= slot < 32 or run.shape[0] != self.kv_bytes(kv, x.shape[0]):
            raise ValueError("sizes do not fit")
        self.table.kv[kv].store(&x[0], x.shape[0], stride, &run[0], slot)

    def kv_bytes(self, int kv, int64_t head_dim):
        """Bytes of the K, or the V, of one head in one page of 32 positions."""
        return self.table.kv[kv].head_bytes((head_dim + 15) // 16 * 16)

    def attention_floats(self, int64_t group, int64_t head_dim):
        """Floats of scratch that one attention task needs."""
        return self.table.attention_scratch(group, (head_dim + 15) // 16 * 16)

    def attention(self, int kv, const float[:, :, ::1] q, const uint8_t[:, ::1] k, const uint8_t[:, ::1] v,
                  int64_t first_position, float scale, int64_t window, float[:, :, ::1] out, int64_t span=0,
                  bint tiled=False, float soft_cap=0.0, int64_t seen=0):
        """q, out (tokens, group, head_dim); k, v (pages, kv_bytes): pages of one KV head in a KV format.

        With ``span``, tasks of that many chunks leave parts, which are merged; else one task computes all chunks.
        ``tiled``: in bf16 tiles. ``seen``: positions that all tokens see, later ones too.
        """
        cdef int64_t n_pages = k.shape[0], stride = (q.shape[2] + 15) // 16 * 16, i, at, begin, end, rows
        if (out.shape[0] != q.shape[0] or v.shape[0] != n_pages or 32 * n_pages < max(first_position + q.shape[0], seen)
                or k.shape[1] != self.kv_bytes(kv, q.shape[2]) or v.shape[1] != k.shape[1]):
            raise ValueError("sizes do not fit")
        if tiled and self.table.kv[kv].tiled == NULL:
            raise ValueError(f"{self.name} has no bf16 tiles")
        cdef void (*attention)(const rase_attention_task *) noexcept nogil
        attention = self.table.kv[kv].tiled if tiled else self.table.kv[kv].attention
        cdef rase_attention_task task
        cdef const uint8_t **pages = <const uint8_t **>malloc(n_pages * sizeof(void *))
        cdef int64_t most = self.table.attention_tokens(q.shape[1]), part = self.table.attention_part(stride)
        cdef float *parts = <float *>malloc(4 * (n_pages // 8 + 1) * min(most, q.shape[0]) * q.shape[1] * part)
        cdef float *scratch = <float *>malloc(4 * self.table.attention_scratch(q.shape[1], stride) + 64)
        if pages == NULL or parts == NULL or scratch == NULL:
            free(pages); free(parts); free(scratch)
            raise MemoryError
        for i in range(n_pages):  # one page is a K run and a V run, wherever they lie
            pages[i] = &k[i, 0]
        task.k_offset, task.v_offset = 0, &v[0, 0] - &k[0, 0]
        task.q_stride = task.out_stride = q.shape[1] * q.shape[2]
        task.group, task.head_dim, task.head_stride = q.shape[1], q.shape[2], stride
        task.window, task.seen, task.scale, task.soft_cap, task.pages = window, seen, scale, soft_cap, pages
        task.scratch = <float *>((<uintptr_t>scratch + 63) & ~<uintptr_t>63)
        if tiled:
            self.tiles.begin()
        for i in range(0, q.shape[0], most):
            task.q, task.out = &q[i, 0, 0], &out[i, 0, 0]
            task.n_tokens, task.first_position = min(most, q.shape[0] - i), first_position + i
            rows = task.n_tokens * task.group
            begin = (max(0, task.first_position - window + 1) if window else 0) // RASE_CHUNK
            end = (max(task.first_position + task.n_tokens, seen) - 1) // RASE_CHUNK + 1
            task.first_chunk, task.last_chunk = begin, end
            task.parts, task.next_high = NULL, 0
            if span:
                for at in range(begin, end, span):
                    task.parts = parts + (at - begin) * rows * part
                    task.first_chunk = at
                    task.last_chunk = min(at + span, end)
                    with nogil:
                        attention(&task)
                task.parts, task.first_chunk = parts, begin
                self.table.attention_merge(&task)
            else:
                with nogil:
                    attention(&task)
        if tiled:
            self.tiles.end()
        free(pages); free(parts); free(scratch)

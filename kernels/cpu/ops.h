// SPDX-License-Identifier: Apache-2.0
//
// The arguments of every CPU kernel: one struct an op, the same names as gen/ops.lua.
//
// Conventions. Activations are fp32, row-major, `ld*` is the distance between rows in elements. `pass` tells the live rows.
// Shapes are constants that the generator writes into the launch. Formulas: the section of the architecture notes is named.

#ifndef OPS_H
#define OPS_H

#include "kernel.h"

// How the numbers of a weight are stored. A property of a tensor, never of a model.
enum encoding {
    ENC_F32,
    ENC_BF16,
    ENC_F16,
    ENC_AFFINE,    // MLX affine: q of `bits` bits; w = scale * q + bias per `group` along k (scale, bias bf16)
    ENC_NVFP4,     // E2M1 code * E4M3 scale per 16 along k * fp32 global
    ENC_MXFP8,     // E4M3 * 2^(E8M0 - 127) per 32 along k
    ENC_FP8_BLOCK, // E4M3 * fp32 scale of its 128x128 tile
    ENC_FP8,       // E4M3 * one fp32 scale (global)
    ENC_INT4,      // symmetric int4, w = scale * (q - zero) per `group` along k (GPTQ, AutoRound)
    ENC_COUNT,
};

// Prompt rows and decode rows may be two kernel classes with different bits; within a class bits never depend on the company.
enum row_class { CLASS_DECODE, CLASS_PROMPT };

enum activation { ACT_NONE, ACT_SILU, ACT_SIGMOID, ACT_RELU2 };

// An encoded matrix [n, k] (or `experts` of them, stacked) in the panel layout of kernels/cpu/layout.h.
struct weight {
    int32_t encoding, bits, group; // bits and group where the encoding has them
    int32_t n, k;
    const uint8_t *data;               // codes
    const uint8_t *scale;              // scales (and biases), or NULL
    const float *global;               // per-tensor factor, one an expert, or NULL
    int64_t data_stride, scale_stride; // bytes from one expert to the next; 0 when not stacked
};

// ---- linear.c -------------------------------------------------------------------------------------------------------

enum { LINEAR_PARTS = 6 };

// y_i[r][o] = act(alpha * sum_k W_i[o][k] x[r][k]) for each part i: the parts share x (fused projections). All parts have the
// same k. Row r of x is x + r * ldx. Bits of a row depend on the row and the class only.
struct linear_args {
    const struct pass *pass; // rows = pass->rows, unless row_multiple > 1: then rows = pass->rows * row_multiple
    int32_t row_multiple;    // e.g. the streams of a hyper-connection seen as rows
    int32_t row_class;
    int32_t k, ldx;
    const float *x;
    void *scratch; // linear_scratch_bytes(rows capacity, k): what phase 0 prepares for phase 1
    int32_t parts;
    struct linear_part {
        struct weight w;
        float *y;
        int32_t ldy, activation;
        float alpha;
    } part[LINEAR_PARTS];
};

// Routed experts, first half: for row r and slot s with e = ids[r][s]:
//   gated: h[r][s][i] = silu(G_e x_r)_i * (U_e x_r)_i          (2.10)
//   plain: h[r][s][i] = act((U_e x_r)_i)                       (4.5, relu^2), gate.data == NULL
// Phase 0 groups the rows by expert (into `groups`); a row's bits do not depend on who shares its expert.
struct experts_up_args {
    const struct pass *pass;
    int32_t row_class, experts, slots, k, inner, ldx, activation;
    const float *x;
    const int32_t *ids; // [rows][slots], of all rows that the launch is made for: more may be read than the pass has
    struct weight gate, up;
    float *h;      // [rows][slots][inner]
    void *groups;  // experts_groups_bytes(rows capacity, slots, experts)
    void *scratch; // linear_scratch_bytes(rows capacity, k)
    int32_t early; // 1: x and ids were there before the launch right before this one
};

// Second half: y[r][s][:] = D_e h[r][s][:]. Uses the groups that experts_up made.
struct experts_down_args {
    const struct pass *pass;
    int32_t row_class, experts, slots, k, n;
    const float *h;
    const int32_t *ids;
    struct weight down;
    float *y; // [rows][slots][n]
    void *groups;
    void *scratch; // linear_scratch_bytes(rows capacity * slots, k)
};

// y[r] = decoded row of the table for the row's token, repeated `copies` times (2.2). The table is in the row layout, or in
// the panel layout when it is tied to the output projection.
struct embed_args {
    const struct pass *pass;
    struct weight table; // n = vocabulary, k = width
    int32_t panel;       // 1: panel layout; 0: row layout
    int32_t copies, ldy;
    float *y;
};

// ---- norm.c ---------------------------------------------------------------------------------------------------------

// y[r][g*dim + i] = x[r][g*dim + i] * rsqrt(mean_i x^2 + eps) * w[g*dim + i]; w is the whole multiplier (1 + stored weight
// where the family is zero-centred). GN of 2.1 with groups = 4; plain RMS norm with groups = 1.
struct norm_args {
    const struct pass *pass;
    int32_t groups, dim, ldx, ldy;
    float eps;
    const float *x, *w;
    float *y;
};

// Per-head gated norm (2.1): y = x * rsqrt(mean x^2 + eps) * w[i] * act(z), heads of dim, w shared by the heads.
// norm_after: 1 = Mamba-2 (4.5): t = x * silu(z), then RMS over groups of dim, then w[g*dim + i] (w has heads*dim entries).
struct gated_norm_args {
    const struct pass *pass;
    int32_t heads, dim, ldx, ldz, ldy, activation, norm_after;
    float eps;
    const float *x, *z, *w;
    float *y;
};

// Per-head norm, then rotary embedding of the first `rotary` dims, rotate-half pairing (i, i + rotary/2) (2.8).
// Head h of row r is x + r*ldx + h*head_stride; output y + r*ldy + h*dim. w == NULL: no norm. rotary == 0: no rotation.
// inverse_frequency has rotary/2 entries. The angle of pair i is position * inverse_frequency[i], cos and sin in fp32.
struct head_norm_args {
    const struct pass *pass;
    int32_t heads, head_stride, dim, rotary, ldx, ldy;
    float eps;
    const float *x, *w, *inverse_frequency;
    float *y;
};

// x[r] += y[r] (residual of the siblings).
struct add_args {
    const struct pass *pass;
    int32_t width, ldx, ldy;
    float *x;
    const float *y;
};

// h = act(g) * u; g == NULL: h = act(u). Dense MLPs and the shared expert.
struct glu_args {
    const struct pass *pass;
    int32_t width, ldg, ldu, ldy, activation;
    const float *g, *u;
    float *y;
};

// ---- streams.c: hyper-connections (2.4) ---------------------------------------------------------------------------------

// y[r][d] = (1/streams) * sum_c sigmoid(gate[r][c*dim+d]) * xn[r][c*dim+d], summed in the order of c.
struct hc_mix_args {
    const struct pass *pass;
    int32_t streams, dim;
    const float *xn, *gate;
    float *y;
};

// R[r][c*dim+d] += 2 * sigmoid(inject[r][c]) * y[r][d]; inject already holds (Winj xn)/streams.
struct hc_inject_args {
    const struct pass *pass;
    int32_t streams, dim, ldi;
    const float *inject, *y;
    float *r;
};

// Input of the head (2.12): x[r][c*dim+d] = e[r][d] + h[r][c*dim+d].
struct streams_add_args {
    const struct pass *pass;
    int32_t streams, dim;
    const float *e, *h;
    float *y;
};

// ---- ngram.c: n-gram embedding and its injection (2.5, 2.6) -----------------------------------------------------------------

// Where the n-gram table's rows are: in memory, or in a file that is read by row.
struct row_source {
    const uint8_t *memory; // not NULL: row i starts at memory + i * row_bytes
    int32_t file;          // else: descriptor
    int64_t offset;        // of row 0 in the file
    int64_t row_bytes;
};

// e[r] = concat of heads rows of `dim`. Head i hashes n = 2 for i < heads/(ngram-1), then 3, ... ids come from lane->tokens
// (position, position - 1, ...), cut at separators: t1 = id[p-1] (eos if p = 0); t2 = eos if t1 == eos else id[p-2] (eos if
// p < 2); and so on. Row index = offset[i] + hash mod size[i]. A row that cannot be read is zeros and sets *failed to 1.
struct ngram_args {
    const struct pass *pass;
    struct lane_set lanes;
    int32_t heads, dim, ngram, eos;
    int32_t encoding, bits, group; // of a table row (row layout)
    const int64_t *multiplier;     // [ngram]
    const int64_t *size, *offset;  // [heads]
    const struct row_source *table;
    const float *global; // encoding's per-tensor factor, or NULL
    int32_t *failed;
    float *y; // [rows][heads*dim]
};

// U[r][c*dim+d] = sigmoid(s'[c]) * v[d] with s[c] = (k[c] . q[c]) / sqrt(dim), s' = sign(s) sqrt(max(|s|, 1e-6)), sign(0) = 0.
struct ple_gate_args {
    const struct pass *pass;
    int32_t streams, dim;
    const float *k, *q, *v;
    float *u;
};

// R += U + silu(y), all of width `width`: the end of 2.6 (y is the convolution before its activation).
struct ple_add_args {
    const struct pass *pass;
    int32_t width;
    const float *u, *y;
    float *r;
};

// ---- recurrent.c: convolution, Gated DeltaNet, Mamba-2 -------------------------------------------------------------------
//
// States live in lane->run. A window (direct == 0) must not change the state that lies there, since some of its rows may be
// rejected: it saves what its rows would do, and the next pass first folds the first lane->fold of them into the state. A
// pass with direct == 1 (prompt rows, or a window of one) folds what is pending, then updates the state in place; the bits
// are the same, because the row update is the same code in the same order. lane->fold is reset by the program's last op.

// Causal depthwise convolution: y[r][j] = act(bias[j] + sum_i w[j*taps + i] * u_{p - dilation*(taps-1-i)}[j]), summed in the
// order of i; w[.., taps-1] is the current row; rows before position 0 are zero. State at run + state: `history` =
// dilation*(taps-1) rows of `channels` fp32 (oldest first), then MAX_WINDOW rows: the raw inputs of the pending window.
struct conv_args {
    const struct pass *pass;
    struct lane_set lanes;
    int32_t channels, taps, dilation, activation, ldu, ldy, direct;
    int64_t state;
    const float *u, *w, *bias; // bias may be NULL
    float *y;
};

// Gated DeltaNet recurrence (2.7). c holds, a row: q [nk*dk] | k [nk*dk] | v [nv*dv] after the convolution. q and k are l2
// normalised here (rsqrt(sum + 1e-6)), q scaled by dk^-0.5. beta = sigmoid(b), g = -exp(a_log) * softplus(a + dt_bias).
// Value head h uses key head h / (nv/nk). S <- exp(g) S; r = S^T k; d = beta (v - r); S <- S + k d^T; o = S^T q.
// State at run + state: [nv][dk][dv] fp32, then MAX_WINDOW saved rows of (k [nk*dk], v [nv*dv], g [nv], beta [nv]) fp32, k normalised.
struct gdn_args {
    const struct pass *pass;
    struct lane_set lanes;
    int32_t nk, nv, dk, dv, ldc, ldb, lda, ldy, direct;
    int64_t state;
    const float *c, *b, *a, *a_log, *dt_bias;
    float *prepared; // [rows][nk*dk + nk*dk + 2*nv]: phase 0 writes normalised q, k and exp(g), beta
    float *y;        // [rows][nv*dv]
};

// Mamba-2 recurrence (4.5). c holds, a row: x [heads*dim] | B [groups*state_dim] | C [groups*state_dim].
// dt = max(softplus(dt_raw + dt_bias), dt_min) (dt_min 0: no clamp), S <- exp(-exp(a_log) dt) S + dt x B^T,
// y = S C + D x. State: [heads][dim][state_dim] fp32, then MAX_WINDOW saved rows of (x, B, dt).
struct mamba_args {
    const struct pass *pass;
    struct lane_set lanes;
    int32_t heads, dim, groups, state_dim, ldc, ldt, ldy, direct;
    float dt_min;
    int64_t state;
    const float *c, *dt, *a_log, *dt_bias, *d;
    float *y;
};

// ---- attention.c ----------------------------------------------------------------------------------------------------------

enum kv_encoding { KV_F32, KV_BF16, KV_FP8 };

// Where a layer's rows are in a page of n positions (all a multiple of n): keys at n*base, values at n*(base + key_bytes),
// raw index keys at n*(base + 2*key_bytes), pooled rows (n/4 of them) at n*(base + 2*key_bytes + index_bytes).
// KV_FP8 rows are: kv_heads * dim codes, then kv_heads fp32 scales; index keys stay bf16 then.
struct kv_layout {
    int32_t encoding, kv_heads, dim;
    int32_t index_dim;      // 0: no indexer
    int32_t index_encoding; // KV_F32 or KV_BF16
    int64_t base;           // bytes a position before this layer
    int64_t key_bytes;      // bytes a position of keys (values have the same)
    int64_t index_bytes;    // bytes a position of raw index keys; a pooled row has as many
};

// Writes keys, values and raw index keys (NULL: none) of the rows to the caches at their positions.
struct kv_append_args {
    const struct pass *pass;
    struct lane_set lanes;
    struct kv_layout layout;
    int32_t ldk, ldv, ldi;
    const float *k, *v, *index; // k after norm and rotation
};

// Pools each block of 4 positions that the pass completes (2.9): mean over the 4 raw keys as stored, in position order, fp32;
// norm with w; rotation at position 4b; stored as a pooled row.
struct index_pool_args {
    const struct pass *pass;
    struct lane_set lanes;
    struct kv_layout layout;
    int32_t ratio, rotary;
    float eps;
    const float *w, *inverse_frequency;
};

// For each row: score_b = (1/sqrt(index_dim)) * sum_h relu(iq_h . K_b) over complete blocks b < (p+1)/ratio, heads in order; the best
// `keep` blocks (score descending, block ascending), written in ascending block order. counts[r] = blocks chosen; with at
// most `keep` complete blocks counts[r] = -1, which means all positions (dense).
struct index_select_args {
    const struct pass *pass;
    struct lane_set lanes;
    struct kv_layout layout;
    int32_t heads, ratio, keep, ldq;
    const float *q;  // [rows][heads*index_dim], normed and rotated
    int32_t *blocks; // [rows][keep]
    int32_t *counts; // [rows]
    void *scratch;   // index_select_scratch_bytes(rows), or NULL; the CPU leaves it alone
    int32_t row_class;
};

// A device may share the scores of one of few rows among its processors, up to so many; and a long row of attention.
enum { INDEX_SCORES = 65536, INDEX_SCORES_ROWS = 8, ATTENTION_SLOTS = 16 };

// Bytes of index_select_args.scratch: 4 * INDEX_SCORES * min(rows, INDEX_SCORES_ROWS).
static inline int64_t index_select_scratch_bytes(int64_t rows)
{
    const int64_t most = INDEX_SCORES_ROWS;
    return 4 * INDEX_SCORES * (rows < most ? rows : most);
}

// Bytes of attention_args.scratch: sums of ATTENTION_SLOTS times 16 heads, 8 * dim bytes each.
static inline int64_t attention_scratch_bytes(int64_t dim)
{
    return ATTENTION_SLOTS * 16 * 8 * dim;
}

// Causal attention over the selected blocks and the tail positions (p+1)/ratio*ratio .. p, or over all positions when
// counts == NULL or counts[r] < 0. Chunks of absolute positions, merged in ascending order, online softmax in fp32.
// y[r][h*dim + i] = o * sigmoid(gate[r*ldg + h*gate_stride + i]) (gate may be NULL). kv head of h = h / (heads/kv_heads).
struct attention_args {
    const struct pass *pass;
    struct lane_set lanes;
    struct kv_layout layout;
    int32_t heads, ldq, ldg, gate_stride, ldy, ratio, keep;
    float scale;
    const float *q, *gate;
    const int32_t *blocks, *counts;
    float *y;
    int32_t row_class;
    int32_t early; // 1: q, gate and the rows' keys and values were there before the launch right before this one
    void *scratch; // attention_scratch_bytes(dim), or NULL; the CPU leaves it alone
};

// ---- moe.c ----------------------------------------------------------------------------------------------------------------

// Chooses `slots` experts a row from logits [rows][experts], highest first, ties to the lower id.
// sigmoid == 0 (2.10): p = softmax(l); weight = p / sum of the chosen p when normalise, else p; times factor.
// sigmoid == 1 (4.5): s = sigmoid(l); chosen by s + bias; weight = s / (sum + 1e-20) when normalise; times factor.
struct route_args {
    const struct pass *pass;
    int32_t experts, slots, sigmoid, normalise, ldl;
    float factor;
    const float *logits, *bias; // bias may be NULL
    int32_t *ids;               // [rows][slots]
    float *weights;             // [rows][slots]
};

// y[r][d] = sum_s weights[r][s] * routed[r][s][d] in slot order, then + sigmoid(gate[r*ldg]) * shared[r][d]
// (gate NULL: factor 1; shared NULL: none).
struct moe_sum_args {
    const struct pass *pass;
    int32_t slots, width, ldg, lds, ldy;
    const float *routed, *weights, *shared, *gate;
    float *y;
};

// ---- control.c: rows, draws, acceptance -------------------------------------------------------------------------------------

enum rows_mode {
    ROWS_TRUNK, // positions length .. length + rows - 1 of every lane; token = tokens[position]
    ROWS_FILL, // head cells head_length .. length + rows - 1 whose next token is known (position + 1 < limit); token = tokens[position + 1]
    ROWS_TAIL, // lane->tail_rows rows of each lane, from position lane->tail_first on (rows of an earlier prompt pass)
    ROWS_ABSORB, // head cells head_length .. length - 1; token = tokens[position + 1]
    ROWS_LAST,   // one row a lane that the head drafts for (not headless): the last of the absorbed cells
    ROWS_CHAIN,  // one row for each of the same lanes: cell length - 1 + step; token = tokens[position + 1]
};

struct rows_args {
    struct pass *pass;
    struct lane_set lanes;
    int32_t mode, step, capacity;
};

// y[r] = the streams of row r's lane l and position. With `from`: row from->lane_first[l] + position - (position of that
// lane's first row in from) of x. Else, and for a position that `from` does not have: the saved streams at run + state (a ring
// by position mod MAX_WINDOW, valid from lane->streams_base on); zeros when state < 0 or the position is older. So a head
// pass that may begin before the trunk's rows (ROWS_FILL) gathers before save_streams.
struct gather_args {
    const struct pass *pass; // rows to write
    const struct pass *from; // pass that x belongs to, or NULL: x is the lane's saved streams at run + state
    struct lane_set lanes;
    int32_t width;
    int64_t state;
    const float *x;
    float *y;
};

// Saves the last min(rows, MAX_WINDOW) rows of each lane to the ring at run + state ([MAX_WINDOW][width] fp32), and moves
// lane->streams_base, the oldest position that the ring still holds. The row before a state that the lane keeps in this pass goes to the
// ring of that state too.
struct save_streams_args {
    const struct pass *pass;
    struct lane_set lanes;
    int32_t width;
    int64_t state;
    const float *x;
};

// Draws a token a row (keyed Gumbel of (seed, position, id); greedy at temperature 0; ties to the lower id).
// lane->penalties changes the row's logits for its draw alone: they are as they were afterwards. The tokens of the window up to
// position + ahead - 1 count as if they were in the reply already. Of more than MAX_WINDOW rows of a lane only the last MAX_WINDOW
// are drawn with penalties.
// lane->mask: the lane's i-th row of the pass draws among the tokens of mask row i alone, as if every other logit were -infinity after the
// penalties and before top-k; the logits stay as they are. A row allows at least one token; with no usable logit (NaN or -infinity) among
// them the draw is the lowest id allowed. Only rows with ahead == 1 (trunk and tail) have masks: a lane whose mask is set is
// headless, so the head never draws for it.
// lane->logprobs[i] gets the log-probabilities of the lane's row i where store < 0 (the trunk's rows), i < MAX_WINDOW.
// ids: the logits are of these tokens alone, ascending (the head's reduced vocabulary); the draw is keyed by the token, as it is among
// all, and no penalty applies.
// The position of the draw is the row's position + ahead: 1 in the trunk, 2 in the head. With store >= 0 the token goes to
// lane->tokens[position + store] as well (the head: 2).
struct draw_args {
    const struct pass *pass;
    struct lane_set lanes;
    int32_t vocabulary, ldl, ahead, store;
    const float *logits;
    int32_t *drawn;     // [rows]
    const int32_t *ids; // [vocabulary] token of each column; NULL: its number
};

// Accepts the longest prefix of the window's drafts that equals the draws, none after a draw of lane->halt - 1 (so that token
// is the pending one and the host sees it before what follows it is drawn); commits: length, fold, the pending token; the
// result block gets, a lane: accepted + 1 and the new tokens. A direct window (of one row) has updated its states in place.
struct accept_args {
    const struct pass *pass;
    struct lane_set lanes;
    int32_t direct;
    const int32_t *drawn;
    int32_t *result; // [lanes][1 + MAX_WINDOW]
};

// Ends a prompt pass: length += rows, fold = 0. head == 1: ends a head pass instead: head_length = head cells that the pass
// wrote + head_length.
struct commit_args {
    const struct pass *pass;
    struct lane_set lanes;
    int32_t head;
};

#endif

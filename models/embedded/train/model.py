# SPDX-License-Identifier: Apache-2.0
"""Functional forward pass of Qwen3.8-Flash-Next (qwen4_exp text part + MTP head) for training and for exact evaluation.

Parameters live in one dict, named as in the checkpoint without the `model.language_model.` prefix
(`embed_tokens.weight`, `layers.0...`, `hyper_connection_mixer...`, `lm_head.weight`, `mtp...`).
All functions work in the dtype of the streams R; norms, decay, softmax and the delta rule run in fp32.
"segments": several documents may share a row; attention, GDN state, convolutions and n-grams never cross a segment.
"""
import math
import torch
import torch.nn.functional as F

HAS_SDPA = hasattr(F, "scaled_dot_product_attention")
TRI = {"fn": None}          # optional fast kernel for the 64x64 unit-triangular inverse (set by train.py)


class Cfg:
    """text_config of config.json with attribute access plus derived sizes."""

    def __init__(self, d):
        self.__dict__.update(d)
        self.D, self.C = d["hidden_size"], d["hc_count"]
        self.W = self.D * self.C
        self.nk, self.nv = d["linear_num_key_heads"], d["linear_num_value_heads"]
        self.dk, self.dv = d["linear_key_head_dim"], d["linear_value_head_dim"]
        self.kd, self.vd = self.nk * self.dk, self.nv * self.dv
        self.convd = 2 * self.kd + self.vd
        self.rot = int(d["head_dim"] * d["rope_parameters"]["partial_rotary_factor"])
        self.theta = d["rope_parameters"]["rope_theta"]
        self.topb = d["indexer_budget"] // d["indexer_compress_ratio"]
        self.eos = d["eos_token_id"][0] if isinstance(d["eos_token_id"], list) else d["eos_token_id"]
        self.full = [t == "full_attention" or t == "qwen_sparse_attention" for t in d["layer_types"]]
        self.ple_layer = d["ple_layer_ids"][0] - 1
        self.nh = (d["ngram_size"] - 1) * d["heads_per_ngram"]
        self.primes = ngram_primes(d["ngram_vocab_size_base"], self.nh)
        self.offsets = [sum(self.primes[:i]) for i in range(self.nh)]
        div = d["make_ngram_vocab_size_divisible_by"]
        self.ng_rows = -(-sum(self.primes) // div) * div
        self.mult = multipliers(d["vocab_size"], d["ngram_size"], 0, d["seed"])


# ---------------------------------------------------------------- n-gram hashing constants
def ngram_primes(base, n):
    def prime(v):
        return v > 1 and all(v % k for k in range(2, math.isqrt(v) + 1))
    out, v = [], base - 1
    while len(out) < n:
        v += 1
        if prime(v):
            out.append(v)
    return out


def multipliers(vocab, n, ple_index, seed):
    M, G = (1 << 64) - 1, 0x9E3779B97F4A7C15
    half = max(1, (((1 << 63) - 1) // max(vocab, 1)) // 2)
    out = []
    for i in range(n):
        v = (seed + 10007 * ple_index + G * (i + 1)) & M
        v = (v + G) & M
        v = ((v ^ (v >> 30)) * 0xBF58476D1CE4E5B9) & M
        v = ((v ^ (v >> 27)) * 0x94D049BB133111EB) & M
        v = v ^ (v >> 31)
        out.append(2 * (v % half) + 1)
    return out


def ngram_rows(ids, cfg):
    """[B,S] token ids -> [B,S,16] rows of the n-gram table."""
    ids = ids.long()
    e1 = torch.full_like(ids[:, :1], cfg.eos)
    t1 = torch.cat([e1, ids[:, :-1]], 1)
    t2 = torch.cat([e1, t1[:, :-1]], 1)
    t2 = torch.where(t1 == cfg.eos, torch.full_like(t2, cfg.eos), t2)
    h2 = (ids * cfg.mult[0]) ^ (t1 * cfg.mult[1])
    h3 = h2 ^ (t2 * cfg.mult[2])
    pr = torch.tensor(cfg.primes, device=ids.device)
    of = torch.tensor(cfg.offsets, device=ids.device)
    hp = cfg.heads_per_ngram
    return torch.cat([torch.remainder(h2.unsqueeze(-1), pr[:hp]), torch.remainder(h3.unsqueeze(-1), pr[hp:])], -1) + of


# ---------------------------------------------------------------- parameters
def shapes(cfg):
    D, C, W, r = cfg.D, cfg.C, cfg.W, cfg.hc_lowrank
    E, I, SI, d = cfg.num_experts, cfg.moe_intermediate_size, cfg.shared_expert_intermediate_size, cfg.head_dim
    s = {"embed_tokens.weight": (cfg.vocab_size, D)}

    def hc(p, inject=True):
        s[p + "hc_norm.weight"] = (W,)
        s[p + "input_mix_weight_down.weight"] = (r, W)
        s[p + "input_mix_weight_up.weight"] = (W, r)
        if inject:
            s[p + "block_inject_weight.weight"] = (C, W)

    def layer(p, full):
        hc(p + "attn_hyper_connection."); hc(p + "mlp_hyper_connection.")
        if full:
            a = p + "self_attn."
            s[a + "q_proj.weight"] = (cfg.num_attention_heads * d * 2, D)
            s[a + "k_proj.weight"] = (cfg.num_key_value_heads * d, D)
            s[a + "v_proj.weight"] = (cfg.num_key_value_heads * d, D)
            s[a + "o_proj.weight"] = (D, cfg.num_attention_heads * d)
            s[a + "q_norm.weight"] = (d,); s[a + "k_norm.weight"] = (d,)
            s[a + "indexer.index_qk_proj.weight"] = ((cfg.indexer_n_heads + 1) * cfg.indexer_head_dim, D)
            s[a + "indexer.q_layernorm.weight"] = (cfg.indexer_head_dim,)
            s[a + "indexer.k_layernorm.weight"] = (cfg.indexer_head_dim,)
        else:
            a = p + "linear_attn."
            s[a + "in_proj_qkv.weight"] = (cfg.convd, D); s[a + "in_proj_z.weight"] = (cfg.vd, D)
            s[a + "in_proj_b.weight"] = (cfg.nv, D); s[a + "in_proj_a.weight"] = (cfg.nv, D)
            s[a + "conv1d.weight"] = (cfg.convd, 1, cfg.linear_conv_kernel_dim)
            s[a + "A_log"] = (cfg.nv,); s[a + "dt_bias"] = (cfg.nv,)
            s[a + "norm.weight"] = (cfg.dv,); s[a + "out_proj.weight"] = (D, cfg.vd)
        m = p + "mlp."
        s[m + "gate.weight"] = (E, D)
        s[m + "experts.gate_up_proj"] = (E, 2 * I, D); s[m + "experts.down_proj"] = (E, D, I)
        s[m + "shared_expert.gate_proj.weight"] = (SI, D); s[m + "shared_expert.up_proj.weight"] = (SI, D)
        s[m + "shared_expert.down_proj.weight"] = (D, SI); s[m + "shared_expert_gate.weight"] = (1, D)

    for l in range(cfg.num_hidden_layers):
        if l == cfg.ple_layer:
            p = f"layers.{l}.ple."
            s[p + "ple_embedding.ngram_embedding.weight"] = (cfg.ng_rows, cfg.ple_embed_dim // cfg.nh)
            s[p + "key_proj.weight"] = (W, cfg.ple_embed_dim); s[p + "value_proj.weight"] = (D, cfg.ple_embed_dim)
            for n in ("norm_key", "norm_query", "norm_conv"):
                s[p + n + ".weight"] = (W,)
            s[p + "conv1d.weight"] = (W, 1, cfg.ple_conv_kernel_size)
        layer(f"layers.{l}.", cfg.full[l])
    hc("hyper_connection_mixer.", False)
    s["lm_head.weight"] = (cfg.vocab_size, D)
    s["mtp.pre_fc_norm_embedding.weight"] = (D,); s["mtp.pre_fc_norm_hidden.weight"] = (W,)
    s["mtp.fc_embedding.weight"] = (D, D); s["mtp.fc_hidden.weight"] = (D, D)
    layer("mtp.layers.0.", True)
    hc("mtp.hyper_connection_mixer.", False)
    return s


def init_params(cfg, seed=0):
    g = torch.Generator().manual_seed(seed)
    P = {}
    for n, sh in shapes(cfg).items():
        fan = sh[-1]
        rnd = lambda std: torch.randn(sh, generator=g) * std
        if n.endswith("norm.weight") or "layernorm" in n or ".norm_" in n or "pre_fc_norm" in n:
            w = torch.ones(sh) if n.endswith("linear_attn.norm.weight") else torch.zeros(sh)
        elif n.endswith("A_log"):
            w = torch.log(torch.tensor([1.0, 2.0, 4.0, 8.0] * ((cfg.nv + 3) // 4))[:cfg.nv])
        elif n.endswith("dt_bias"):
            dt = torch.exp(torch.rand(sh, generator=g) * (math.log(0.1) - math.log(0.002)) + math.log(0.002))
            w = dt + torch.log(-torch.expm1(-dt))
        elif n.endswith("ple.conv1d.weight"):
            w = torch.zeros(sh)
        elif n.endswith("conv1d.weight"):
            w = rnd(0.25); w[..., -1] += 0.6
        elif n == "embed_tokens.weight":
            w = rnd(0.3)
        elif n == "lm_head.weight":
            w = rnd(0.02)
        elif "ngram_embedding" in n:
            w = rnd(0.1)
        elif n.endswith("mlp.gate.weight") or n.endswith("in_proj_a.weight") or n.endswith("in_proj_b.weight"):
            w = rnd(0.02)
        elif n.endswith("block_inject_weight.weight"):
            w = rnd(0.03)
        elif n.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj")):
            w = rnd(0.1 / math.sqrt(fan))
        else:
            w = rnd(1.0 / math.sqrt(fan))
        P[n] = w.float().contiguous()
    return P


def sub(P, prefix):
    n = len(prefix)
    return {k[n:]: v for k, v in P.items() if k.startswith(prefix)}


# ---------------------------------------------------------------- building blocks
def rms(x, w, eps=1e-6):
    xf = x.float()
    return (xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + eps) * (1.0 + w.float())).to(x.dtype)


def grms(x, w, C, eps=1e-6):
    xf = x.float().unflatten(-1, (C, x.shape[-1] // C))
    y = (xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + eps)).flatten(-2)
    return (y * (1.0 + w.float())).to(x.dtype)


def hc_mix(R, p, pre, cfg):
    """Hyper-connection read: mixed input [..,D] and, if present, the injection weights [..,C]."""
    C = cfg.C
    xn = grms(R, p[pre + "hc_norm.weight"], C)
    down, inj = p[pre + "input_mix_weight_down.weight"], p.get(pre + "block_inject_weight.weight")
    if inj is None:
        lo, iw = F.linear(xn, down), None
    else:                                             # one GEMM, padded to a multiple of 8 rows
        r = down.shape[0]
        t = F.linear(xn, torch.cat([down, inj, inj.new_zeros(8 - C, inj.shape[1])]))
        lo = t[..., :r]
        iw = 2 * torch.sigmoid(t[..., r:r + C] / C)
    gt = torch.sigmoid(F.linear(F.silu(lo / C), p[pre + "input_mix_weight_up.weight"]))
    mixed = (gt * xn).unflatten(-1, (C, cfg.D)).mean(-2)
    return mixed, iw


def hc_add(R, y, iw):
    return R + (y.unsqueeze(-2) * iw.unsqueeze(-1)).flatten(-2)


def moe(m, p, pre, cfg):
    """MoE with the experts evaluated densely (zero weight outside the top-k); returns output and balance loss."""
    E, k, I, D = cfg.num_experts, cfg.num_experts_per_tok, cfg.moe_intermediate_size, cfg.D
    shp = m.shape
    x = m.reshape(-1, D)
    lg = F.linear(x, p[pre + "gate.weight"]).float()
    pr = torch.softmax(lg, -1)
    i = torch.arange(E, device=x.device)
    a, b = lg.unsqueeze(-1), lg.unsqueeze(-2)         # a: own logit, b: the others
    rank = ((b > a) | ((b == a) & (i[None, :] < i[:, None]))).sum(-1)
    sel = rank < k
    w = torch.where(sel, pr, torch.zeros_like(pr))
    w = (w / w.sum(-1, keepdim=True)).to(x.dtype)
    gu = F.linear(x, p[pre + "experts.gate_up_proj"].reshape(E * 2 * I, D)).view(-1, E, 2 * I)
    h = F.silu(gu[..., :I]) * gu[..., I:] * w.unsqueeze(-1)
    y = h.reshape(-1, E * I) @ p[pre + "experts.down_proj"].permute(0, 2, 1).reshape(E * I, D)
    s = F.linear(F.silu(F.linear(x, p[pre + "shared_expert.gate_proj.weight"])) *
                 F.linear(x, p[pre + "shared_expert.up_proj.weight"]), p[pre + "shared_expert.down_proj.weight"])
    sg = torch.sigmoid((x * p[pre + "shared_expert_gate.weight"].view(-1)).float().sum(-1, keepdim=True)).to(x.dtype)
    lb = E * ((sel.float().mean(0) / k) * pr.mean(0)).sum()
    return (y + sg * s).view(shp), lb


# ---------------------------------------------------------------- gated delta net
def tri_inv(A):
    """(I + A)^-1 for strictly lower triangular A [..,n,n] (n a power of two) by block doubling."""
    n = A.shape[-1]
    T = torch.eye(n, device=A.device, dtype=A.dtype)
    r = torch.arange(n, device=A.device)
    s, T = 1, T.expand_as(A)
    while s < n:
        blk = (r // (2 * s))
        m = (blk[:, None] == blk[None, :]) & ((r[:, None] // s) % 2 == 1) & ((r[None, :] // s) % 2 == 0)
        B = A * m
        T = T - B if s == 1 else T - T @ B @ T
        s *= 2
    return T


class TriInv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A):
        T = tri_inv(A)
        ctx.save_for_backward(T)
        return T

    @staticmethod
    def backward(ctx, g):
        T, = ctx.saved_tensors
        Tt = T.transpose(-1, -2)
        return -(Tt @ g @ Tt).tril(-1)


def delta_rule(q, k, v, g, beta, chunk=64):
    """Chunked gated delta rule; q,k,v [B,S,H,d], g,beta [B,S,H] fp32; returns [B,S,H,dv] fp32."""
    B, S, H, dk = q.shape
    dv = v.shape[-1]
    n = -(-S // chunk)
    pad = n * chunk - S

    def prep(x):
        x = x.float()
        if pad:
            x = F.pad(x, (0, 0, 0, 0, 0, pad) if x.dim() == 4 else (0, 0, 0, pad))
        x = x.view(B, n, chunk, H, -1) if x.dim() == 4 else x.view(B, n, chunk, H)
        return x.permute(0, 3, 1, 2, 4) if x.dim() == 5 else x.permute(0, 3, 1, 2)      # [B,H,n,chunk(,d)]
    q, k, v, g, beta = (prep(x).contiguous() for x in (q, k, v, g, beta))
    q = q * torch.rsqrt(q.pow(2).sum(-1, keepdim=True) + 1e-6) * dk ** -0.5
    k = k * torch.rsqrt(k.pow(2).sum(-1, keepdim=True) + 1e-6)
    G = g.cumsum(-1)
    r = torch.arange(chunk, device=q.device)
    low = r[:, None] >= r[None, :]
    Pd = torch.where(low, G.unsqueeze(-1) - G.unsqueeze(-2), torch.full_like(G[..., :1, None], -1e30)).exp()
    eG = G.exp().unsqueeze(-1)
    bk, bv = k * beta.unsqueeze(-1), v * beta.unsqueeze(-1)
    kt = k.transpose(-1, -2)
    A = torch.where(r[:, None] > r[None, :], (bk @ kt) * Pd, torch.zeros_like(Pd))
    T = (TRI["fn"] or TriInv.apply)(A)
    u = T @ bv
    w = T @ (bk * eG)
    att = (q @ kt) * Pd
    qd = q * eG
    kd = k * (G[..., -1:] - G).exp().unsqueeze(-1)
    eL = G[..., -1].exp()[..., None, None]
    st = q.new_zeros(B, H, dk, dv)
    outs = []
    for c in range(n):
        vn = u[:, :, c] - w[:, :, c] @ st
        outs.append(qd[:, :, c] @ st + att[:, :, c] @ vn)
        if c + 1 < n:
            st = st * eL[:, :, c] + kd[:, :, c].transpose(-1, -2) @ vn
    o = torch.stack(outs, 2).reshape(B, H, n * chunk, dv)[:, :, :S]
    return o.transpose(1, 2)


def shift(x, k):
    return x if k == 0 else F.pad(x, (0, 0, k, 0))[:, :x.shape[1]]


def gdn(a, seg, p, cfg):
    B, S, _ = a.shape
    pre = "linear_attn."
    u = F.linear(a, p[pre + "in_proj_qkv.weight"])
    z = F.linear(a, p[pre + "in_proj_z.weight"])
    ba = F.linear(a, torch.cat([p[pre + "in_proj_b.weight"], p[pre + "in_proj_a.weight"]]))
    cw = p[pre + "conv1d.weight"]
    K = cw.shape[-1]
    c = u * cw[:, 0, K - 1].to(u.dtype)
    for j in range(1, K):
        same = (shift(seg.unsqueeze(-1) + 1, j) == seg.unsqueeze(-1) + 1).to(u.dtype)
        c = c + shift(u, j) * same * cw[:, 0, K - 1 - j].to(u.dtype)
    c = F.silu(c)
    q = c[..., :cfg.kd].reshape(B, S, cfg.nk, cfg.dk)
    k = c[..., cfg.kd:2 * cfg.kd].reshape(B, S, cfg.nk, cfg.dk)
    v = c[..., 2 * cfg.kd:].reshape(B, S, cfg.nv, cfg.dv)
    rep = cfg.nv // cfg.nk
    q = q.unsqueeze(3).expand(B, S, cfg.nk, rep, cfg.dk).reshape(B, S, cfg.nv, cfg.dk)
    k = k.unsqueeze(3).expand(B, S, cfg.nk, rep, cfg.dk).reshape(B, S, cfg.nv, cfg.dk)
    beta = torch.sigmoid(ba[..., :cfg.nv].float())
    g = -p[pre + "A_log"].float().exp() * F.softplus(ba[..., cfg.nv:].float() + p[pre + "dt_bias"].float())
    start = (seg != shift(seg.unsqueeze(-1), 1).squeeze(-1)).float()
    g = g - 50.0 * start.unsqueeze(-1)
    o = delta_rule(q, k, v, g, beta)
    o = (o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + 1e-6)).to(a.dtype) * p[pre + "norm.weight"].to(a.dtype)
    o = o * torch.sigmoid(z.view(B, S, cfg.nv, cfg.dv).float()).to(a.dtype)
    return F.linear(o.reshape(B, S, cfg.vd), p[pre + "out_proj.weight"])


# ---------------------------------------------------------------- sparse attention
def rope_tables(n, cfg, device):
    inv = 1.0 / (cfg.theta ** (torch.arange(0, cfg.rot, 2, dtype=torch.float32) / cfg.rot))
    f = torch.arange(n, dtype=torch.float32)[:, None] * inv
    f = torch.cat([f, f], -1)
    return f.cos().to(device), f.sin().to(device)


def rope(x, cos, sin):
    """x [B,S,H,d]; cos, sin [S,rot] (broadcast over batch and heads)."""
    r = cos.shape[-1]
    xr, xp = x[..., :r], x[..., r:]
    c, s = cos[:, None, :].to(x.dtype), sin[:, None, :].to(x.dtype)
    x1, x2 = xr[..., :r // 2], xr[..., r // 2:]
    return torch.cat([xr * c + torch.cat([-x2, x1], -1) * s, xp], -1)


def block_scores(a, cos, sin, p, cfg):
    """Indexer scores [B,S,NB] fp32 of the complete blocks (unmasked)."""
    B, S, _ = a.shape
    h, d, cr = cfg.indexer_n_heads, cfg.indexer_head_dim, cfg.indexer_compress_ratio
    NB = S // cr
    qk = F.linear(a, p["self_attn.indexer.index_qk_proj.weight"])
    q = rope(rms(qk[..., :h * d].reshape(B, S, h, d), p["self_attn.indexer.q_layernorm.weight"]), cos, sin)
    raw = qk[:, :NB * cr, h * d:].reshape(B, NB, cr, d)
    kb = rms(raw.float().mean(2).to(a.dtype), p["self_attn.indexer.k_layernorm.weight"]).unsqueeze(2)
    kb = rope(kb, cos[:NB * cr:cr], sin[:NB * cr:cr]).squeeze(2)
    s = torch.matmul(q.reshape(B, S * h, d), kb.transpose(1, 2)).view(B, S, h, NB)
    return torch.relu(s.float()).sum(2) / math.sqrt(d)


def block_valid(seg, NB, cr):
    """[B,S,NB]: block complete at the query and (its last token) in the query's segment."""
    S = seg.shape[1]
    pos = torch.arange(S, device=seg.device)
    done = ((pos + 1) // cr)[:, None] > torch.arange(NB, device=seg.device)[None, :]
    return done[None] & (seg[:, cr - 1:NB * cr:cr].unsqueeze(1) == seg.unsqueeze(2))


def select(sc, valid, topb, exact):
    """Keep the topb valid blocks with the highest score. exact: ties go to the lower block index."""
    NB = sc.shape[-1]
    if NB <= topb:
        return valid
    s = torch.where(valid, sc, torch.full_like(sc, -1.0))
    if exact:
        idx = torch.sort(s, dim=-1, descending=True, stable=True).indices[..., :topb]
        return torch.zeros_like(valid).scatter(-1, idx, True) & valid
    thr = torch.topk(s, topb, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    return valid & (s >= thr)


def attention(q, k, v, mask, scale):
    """q [B,Sq,H,d], k,v [B,Sk,Hkv,d], mask [B,Sq,Sk] bool."""
    rep = q.shape[2] // k.shape[2]
    k = k.repeat_interleave(rep, 2).transpose(1, 2)
    v = v.repeat_interleave(rep, 2).transpose(1, 2)
    q, mask = q.transpose(1, 2), mask.unsqueeze(1)
    if HAS_SDPA:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(1, 2)
    s = (q @ k.transpose(2, 3)).float() * scale
    s = torch.where(mask, s, torch.full_like(s[..., :1, :1], -1e30))
    return (torch.softmax(s, -1).to(v.dtype) @ v).transpose(1, 2)


def qkv_gate(a, cos, sin, p, cfg):
    B, S, _ = a.shape
    H, Hk, d = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim
    qg = F.linear(a, p["self_attn.q_proj.weight"]).view(B, S, H, 2 * d)
    k = F.linear(a, p["self_attn.k_proj.weight"]).view(B, S, Hk, d)
    v = F.linear(a, p["self_attn.v_proj.weight"]).view(B, S, Hk, d)
    q = rope(rms(qg[..., :d], p["self_attn.q_norm.weight"]), cos, sin)
    k = rope(rms(k, p["self_attn.k_norm.weight"]), cos, sin)
    return q, k, v, qg[..., d:]


def qsa(a, cos, sin, seg, allowed, p, cfg, kl_rows=0, exact=False):
    """Sparse attention mixer. Returns y, indexer KL loss, k, v, token mask."""
    B, S, _ = a.shape
    H, Hk, d, cr = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim, cfg.indexer_compress_ratio
    q, k, v, gate = qkv_gate(a, cos, sin, p, cfg)
    NB = S // cr
    valid = block_valid(seg, NB, cr)
    if kl_rows:
        sc = block_scores(a[:kl_rows].detach(), cos, sin, p, cfg)
        with torch.no_grad():                         # dense attention mass per block = the indexer's target
            kk = k[:kl_rows].repeat_interleave(H // Hk, 2).transpose(1, 2)
            s = (q[:kl_rows].transpose(1, 2) @ kk.transpose(2, 3)).float() * d ** -0.5
            s = torch.where(allowed[:kl_rows].unsqueeze(1), s, torch.full_like(s[..., :1, :1], -1e30))
            pt = torch.softmax(s, -1).mean(1)[..., :NB * cr].unflatten(-1, (NB, cr)).sum(-1)
            pt = torch.where(valid[:kl_rows], pt, torch.zeros_like(pt))
            tot = pt.sum(-1, keepdim=True)
            row = (valid[:kl_rows].sum(-1) > 1).float()
            pt = pt / (tot + 1e-6)
        lp = torch.log_softmax(torch.where(valid[:kl_rows], sc, torch.full_like(sc[..., :1], -1e30)), -1)
        kl = torch.where(valid[:kl_rows], pt * (torch.log(pt + 1e-9) - lp), torch.zeros_like(lp)).sum(-1)
        kl = (kl * row).sum() / (row.sum() + 1)
    else:
        kl = a.new_zeros(()).float()
    with torch.no_grad():
        sel = select(block_scores(a, cos, sin, p, cfg), valid, cfg.topb, exact)
        pos = torch.arange(S, device=a.device)
        tail = (pos[None, :] // cr) >= ((pos + 1) // cr)[:, None]
        tok = sel.repeat_interleave(cr, -1)
        if NB * cr < S:
            tok = F.pad(tok, (0, S - NB * cr))
        mask = allowed & (tok | tail)
    o = attention(q, k, v, mask, d ** -0.5)
    o = (o * torch.sigmoid(gate)).reshape(B, S, H * d)
    return F.linear(o, p["self_attn.o_proj.weight"]), kl, k, v, mask


# ---------------------------------------------------------------- layers
def mlp_half(R, p, cfg):
    m, iw = hc_mix(R, p, "mlp_hyper_connection.", cfg)
    y, lb = moe(m, p, "mlp.", cfg)
    return hc_add(R, y, iw), lb


def gdn_layer(R, seg, p, cfg):
    a, iw = hc_mix(R, p, "attn_hyper_connection.", cfg)
    R = hc_add(R, gdn(a, seg, p, cfg), iw)
    return mlp_half(R, p, cfg)


def qsa_layer(R, cos, sin, seg, allowed, p, cfg, kl_rows, exact):
    a, iw = hc_mix(R, p, "attn_hyper_connection.", cfg)
    y, kl, k, v, mask = qsa(a, cos, sin, seg, allowed, p, cfg, kl_rows, exact)
    R, lb = mlp_half(hc_add(R, y, iw), p, cfg)
    return R, lb, kl, k, v, mask


def chain_layer(R, cos, sin, K, V, mask, p, cfg):
    """One chained draft step at every row: the rows of the true cells (K, V under mask) plus the row itself."""
    B, S, _ = R.shape
    a, iw = hc_mix(R, p, "attn_hyper_connection.", cfg)
    q, k, v, gate = qkv_gate(a, cos, sin, p, cfg)
    m = torch.cat([mask, torch.eye(S, dtype=torch.bool, device=R.device).expand(B, S, S)], -1)
    o = attention(q, torch.cat([K, k], 1), torch.cat([V, v], 1), m, cfg.head_dim ** -0.5)
    o = (o * torch.sigmoid(gate)).reshape(B, S, -1)
    return mlp_half(hc_add(R, F.linear(o, p["self_attn.o_proj.weight"]), iw), p, cfg)


def ple(R, e, seg, p, cfg):
    """Per-layer n-gram injection; e [B,S,ple_embed_dim] gathered rows."""
    C, D = cfg.C, cfg.D
    k = grms(F.linear(e, p["key_proj.weight"]), p["norm_key.weight"], C).unflatten(-1, (C, D))
    v = F.linear(e, p["value_proj.weight"])
    q = grms(R, p["norm_query.weight"], C).unflatten(-1, (C, D))
    s = (k.float() * q.float()).sum(-1, keepdim=True) / math.sqrt(D)
    s = s.abs().clamp_min(1e-6).sqrt() * s.sign()
    U = (torch.sigmoid(s).to(R.dtype) * v.unsqueeze(-2)).flatten(-2)
    n = grms(U, p["norm_conv.weight"], C)
    cw = p["conv1d.weight"]
    K, dil = cw.shape[-1], cfg.ngram_size
    y = n * cw[:, 0, K - 1].to(n.dtype)
    for j in range(1, K):
        same = (shift(seg.unsqueeze(-1) + 1, j * dil) == seg.unsqueeze(-1) + 1).to(n.dtype)
        y = y + shift(n, j * dil) * same * cw[:, 0, K - 1 - j].to(n.dtype)
    return R + U + F.silu(y)


def mtp_in(R, e, p, cfg):
    en = F.linear(rms(e, p["pre_fc_norm_embedding.weight"]), p["fc_embedding.weight"])
    r = F.linear(rms(R, p["pre_fc_norm_hidden.weight"]).unflatten(-1, (cfg.C, cfg.D)), p["fc_hidden.weight"])
    return (r + en.unsqueeze(-2)).flatten(-2)


def head(R, p, cfg):
    return hc_mix(R, p, "", cfg)[0]


# ---------------------------------------------------------------- plain forward (evaluation, checks)
def segments(ids, eos):
    return F.pad((ids == eos).long(), (1, 0))[:, :-1].cumsum(1)


def streams(P, ids, cfg, seg=None, exact=True, dtype=torch.float32, kl_rows=0):
    """Streams after the last layer [B,S,4D], plus (lb, kl) sums. seg None: the whole row is one segment (as in HF)."""
    B, S = ids.shape
    seg = torch.zeros_like(ids) if seg is None else seg
    cos, sin = rope_tables(S, cfg, ids.device)
    pos = torch.arange(S, device=ids.device)
    allowed = (pos[None, :] <= pos[:, None])[None] & (seg.unsqueeze(1) == seg.unsqueeze(2))
    x = P["embed_tokens.weight"].to(dtype)[ids]
    R = x.repeat(1, 1, cfg.C)
    aux = []
    for l in range(cfg.num_hidden_layers):
        p = sub(P, f"layers.{l}.")
        if l == cfg.ple_layer:
            tab = p["ple.ple_embedding.ngram_embedding.weight"]
            e = tab[ngram_rows(ids, cfg)].flatten(-2).to(dtype)
            R = ple(R, e, seg, sub(p, "ple."), cfg)
        if cfg.full[l]:
            R, lb, kl, *_ = qsa_layer(R, cos, sin, seg, allowed, p, cfg, kl_rows, exact)
            aux.append((lb, kl))
        else:
            R, lb = gdn_layer(R, seg, p, cfg)
            aux.append((lb, 0.0))
    return R, aux


def logits(P, R, cfg):
    return F.linear(head(R, sub(P, "hyper_connection_mixer."), cfg), P["lm_head.weight"])

# SPDX-License-Identifier: Apache-2.0
"""Incremental fp32 decoder of the tiny Flash-Next model with the MTP head: an independent second implementation of the
maths in model.py (recurrent delta rule, KV and indexer caches, per-token routing), used for the expected outputs.

Trunk.step(token) -> logits of the next token (and keeps the streams R for the MTP head).
Mtp.absorb(R, token) writes one true cell, Mtp.draft(depth) chains drafts and trims them again.
Runs with torch on a CPU; no batching.
"""
import math, json
import torch
import torch.nn.functional as F
import model as M


def rmsv(x, w, eps=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1 + w)


class Layer:
    """One decoder layer with its own state; kind 'gdn' or 'qsa'."""

    def __init__(self, p, cfg, full):
        self.p, self.cfg, self.full = p, cfg, full
        if full:
            self.K, self.V, self.raw, self.pool = [], [], [], []
        else:
            self.tail = torch.zeros(cfg.linear_conv_kernel_dim - 1, cfg.convd)
            self.S = torch.zeros(cfg.nv, cfg.dk, cfg.dv)

    def hc(self, R, pre):
        p, C = self.p, self.cfg.C
        x = R.view(C, -1)
        xn = (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).view(-1) * (1 + p[pre + "hc_norm.weight"])
        lo = F.silu(p[pre + "input_mix_weight_down.weight"] @ xn / C)
        gt = torch.sigmoid(p[pre + "input_mix_weight_up.weight"] @ lo)
        w = p.get(pre + "block_inject_weight.weight")
        return (gt * xn).view(C, -1).mean(0), None if w is None else 2 * torch.sigmoid(w @ xn / C)

    def rope(self, x, pos):
        r = self.cfg.rot
        inv = 1.0 / (self.cfg.theta ** (torch.arange(0, r, 2, dtype=torch.float32) / r))
        f = pos * inv
        c, s = f.cos(), f.sin()
        a, b = x[..., :r // 2], x[..., r // 2:r]
        return torch.cat([a * c - b * s, b * c + a * s, x[..., r:]], -1)

    def gdn(self, a):
        p, cfg, q_ = self.p, self.cfg, "linear_attn."
        u = p[q_ + "in_proj_qkv.weight"] @ a
        win = torch.cat([self.tail, u[None]])
        self.tail = win[1:]
        c = F.silu((win * p[q_ + "conv1d.weight"][:, 0].t()).sum(0))
        q, k = c[:cfg.kd].view(cfg.nk, cfg.dk), c[cfg.kd:2 * cfg.kd].view(cfg.nk, cfg.dk)
        v = c[2 * cfg.kd:].view(cfg.nv, cfg.dv)
        l2 = lambda x: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)
        rep = cfg.nv // cfg.nk
        q = (l2(q) * cfg.dk ** -0.5).repeat_interleave(rep, 0)
        k = l2(k).repeat_interleave(rep, 0)
        beta = torch.sigmoid(p[q_ + "in_proj_b.weight"] @ a)
        g = -p[q_ + "A_log"].exp() * F.softplus(p[q_ + "in_proj_a.weight"] @ a + p[q_ + "dt_bias"])
        S = self.S * g.exp()[:, None, None]
        d = beta[:, None] * (v - torch.einsum("hkv,hk->hv", S, k))
        S = S + k[:, :, None] * d[:, None, :]
        self.S = S
        o = torch.einsum("hkv,hk->hv", S, q)
        o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + 1e-6) * p[q_ + "norm.weight"]
        o = o.view(-1) * torch.sigmoid(p[q_ + "in_proj_z.weight"] @ a)
        return p[q_ + "out_proj.weight"] @ o

    def qsa(self, a, pos):
        """pos = the row index in this layer's own cache (trunk: token position; MTP: cell)."""
        p, cfg, q_ = self.p, self.cfg, "self_attn."
        H, Hk, d, cr = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim, cfg.indexer_compress_ratio
        qg = (p[q_ + "q_proj.weight"] @ a).view(H, 2 * d)
        q = self.rope(rmsv(qg[:, :d], p[q_ + "q_norm.weight"]), pos)
        self.K.append(self.rope(rmsv((p[q_ + "k_proj.weight"] @ a).view(Hk, d), p[q_ + "k_norm.weight"]), pos))
        self.V.append((p[q_ + "v_proj.weight"] @ a).view(Hk, d))
        ih, idim = cfg.indexer_n_heads, cfg.indexer_head_dim
        iq = p[q_ + "indexer.index_qk_proj.weight"] @ a
        self.raw.append(iq[ih * idim:])
        n = len(self.K)
        nb = n // cr
        while len(self.pool) < nb:
            b = len(self.pool)
            kb = torch.stack(self.raw[b * cr:(b + 1) * cr]).mean(0)
            self.pool.append(self.rope(rmsv(kb, p[q_ + "indexer.k_layernorm.weight"]), b * cr))
        if nb > cfg.topb:
            qi = self.rope(rmsv(iq[:ih * idim].view(ih, idim), p[q_ + "indexer.q_layernorm.weight"]), pos)
            sc = torch.relu(qi @ torch.stack(self.pool).t()).sum(0) / math.sqrt(idim)
            blk = torch.sort(sc, descending=True, stable=True).indices[:cfg.topb].sort().values.tolist()
            rows = [b * cr + i for b in blk for i in range(cr)] + list(range(nb * cr, n))
        else:
            rows = list(range(n))
        K = torch.stack([self.K[r] for r in rows]).repeat_interleave(H // Hk, 1)
        V = torch.stack([self.V[r] for r in rows]).repeat_interleave(H // Hk, 1)
        w = torch.softmax(torch.einsum("hd,nhd->hn", q, K) * d ** -0.5, -1)
        o = torch.einsum("hn,nhd->hd", w, V) * torch.sigmoid(qg[:, d:])
        return p[q_ + "o_proj.weight"] @ o.reshape(-1)

    def trim(self, n):
        cr = self.cfg.indexer_compress_ratio
        del self.K[n:], self.V[n:], self.raw[n:], self.pool[n // cr:]

    def moe(self, m):
        p, cfg, I = self.p, self.cfg, self.cfg.moe_intermediate_size
        pr = torch.softmax(p["mlp.gate.weight"] @ m, -1)
        v, i = torch.topk(pr, cfg.num_experts_per_tok)
        w = v / v.sum()
        gu = p["mlp.experts.gate_up_proj"][i] @ m
        h = F.silu(gu[:, :I]) * gu[:, I:]
        y = (w[:, None] * torch.einsum("edi,ei->ed", p["mlp.experts.down_proj"][i], h)).sum(0)
        s = p["mlp.shared_expert.down_proj.weight"] @ (F.silu(p["mlp.shared_expert.gate_proj.weight"] @ m) *
                                                          (p["mlp.shared_expert.up_proj.weight"] @ m))
        return y + torch.sigmoid(p["mlp.shared_expert_gate.weight"] @ m) * s

    def step(self, R, pos):
        C = self.cfg.C
        a, w = self.hc(R, "attn_hyper_connection.")
        y = self.qsa(a, pos) if self.full else self.gdn(a)
        R = R + (w[:, None] * y[None]).reshape(-1)
        m, w = self.hc(R, "mlp_hyper_connection.")
        return R + (w[:, None] * self.moe(m)[None]).reshape(-1)


class Trunk:
    def __init__(self, P, cfg):
        self.P, self.cfg = P, cfg
        self.L = [Layer(M.sub(P, f"layers.{l}."), cfg, cfg.full[l]) for l in range(cfg.num_hidden_layers)]
        self.mix = Layer(M.sub(P, "hyper_connection_mixer."), cfg, True)
        self.ple = M.sub(P, f"layers.{cfg.ple_layer}.ple.")
        self.ctail = torch.zeros(3 * cfg.ngram_size, cfg.W)
        self.hist, self.pos = [], 0

    def ple_step(self, R, tok):
        p, cfg, C = self.ple, self.cfg, self.cfg.C
        t1 = self.hist[-1] if self.hist else cfg.eos
        t2 = cfg.eos if t1 == cfg.eos else (self.hist[-2] if len(self.hist) > 1 else cfg.eos)
        h2 = (tok * cfg.mult[0]) ^ (t1 * cfg.mult[1]); h3 = h2 ^ (t2 * cfg.mult[2])
        hp = cfg.heads_per_ngram
        rows = [cfg.offsets[i] + (h2 if i < hp else h3) % cfg.primes[i] for i in range(cfg.nh)]
        e = p["ple_embedding.ngram_embedding.weight"][rows].reshape(-1)
        g = lambda x, w: (x.view(C, -1) * torch.rsqrt(x.view(C, -1).pow(2).mean(-1, keepdim=True) + 1e-6)).view(-1) * (1 + w)
        k = g(p["key_proj.weight"] @ e, p["norm_key.weight"]).view(C, -1)
        q = g(R, p["norm_query.weight"]).view(C, -1)
        s = (k * q).sum(-1) / math.sqrt(cfg.D)
        s = s.abs().clamp_min(1e-6).sqrt() * s.sign()
        U = (torch.sigmoid(s)[:, None] * (p["value_proj.weight"] @ e)[None]).reshape(-1)
        n = g(U, p["norm_conv.weight"])
        cw, dil = p["conv1d.weight"][:, 0], cfg.ngram_size
        win = torch.cat([self.ctail, n[None]])                       # rows p-9..p
        y = sum(win[j * dil] * cw[:, j] for j in range(cw.shape[1]))
        self.ctail = win[1:]
        return R + U + F.silu(y)

    @torch.no_grad()
    def step(self, tok):
        x = self.P["embed_tokens.weight"][tok]
        R = x.repeat(self.cfg.C)
        for l, L in enumerate(self.L):
            if l == self.cfg.ple_layer:
                R = self.ple_step(R, tok)
            R = L.step(R, self.pos)
        self.hist.append(tok); self.pos += 1
        self.R = R
        self.h = self.mix.hc(R, "")[0]
        return self.P["lm_head.weight"] @ self.h


class Mtp:
    def __init__(self, P, cfg):
        self.P, self.cfg = P, cfg
        self.L = Layer(M.sub(P, "mtp.layers.0."), cfg, True)
        self.mix = Layer(M.sub(P, "mtp.hyper_connection_mixer."), cfg, True)
        self.n = 0                                                    # rows absorbed (true cells)

    def _cell(self, R, tok, pos):
        P, C = self.P, self.cfg.C
        e = P["mtp.fc_embedding.weight"] @ rmsv(P["embed_tokens.weight"][tok], P["mtp.pre_fc_norm_embedding.weight"])
        r = rmsv(R, P["mtp.pre_fc_norm_hidden.weight"]).view(C, -1) @ P["mtp.fc_hidden.weight"].t()
        X = self.L.step((r + e[None]).reshape(-1), pos)
        return X, P["lm_head.weight"] @ self.mix.hc(X, "")[0]

    @torch.no_grad()
    def absorb(self, R, next_tok):
        """True cell n: target streams of position n and the true token n+1; returns the logits for token n+2."""
        self.X, lg = self._cell(R, next_tok, self.n)
        self.n += 1
        self.lg = lg
        return lg

    @torch.no_grad()
    def draft(self, depth):
        """Greedy chain after the last absorbed cell: `depth` token ids; the rows written by drafts are trimmed."""
        out, X, lg = [], self.X, self.lg
        for k in range(depth):
            t = int(lg.argmax())
            out.append(t)
            if k + 1 < depth:
                X, lg = self._cell(X, t, self.n + k)
        self.L.trim(self.n)
        return out


def load_flat(path, cfg):
    import numpy as np
    flat = torch.from_numpy((np.fromfile(path, np.uint16).astype(np.uint32) << 16).view(np.float32))
    P, o = {}, 0
    for n, sh in M.shapes(cfg).items():
        k = math.prod(sh)
        P[n] = flat[o:o + k].view(sh).clone(); o += k
    assert o == flat.numel(), (o, flat.numel())
    return P


def generate(P, cfg, prompt, max_new=160, stop=(), mtp=True, depth=3):
    """Greedy reply. Returns reply ids, the trunk logits rows of the reply and per position the draft chain.

    Draft chain at reply index i (after token i was chosen): guesses for tokens i+1..i+depth."""
    T, H = Trunk(P, cfg), Mtp(P, cfg)
    lg, R = None, None
    for i, t in enumerate(prompt):
        if mtp and i > 0:
            H.absorb(R, t)
        lg = T.step(t); R = T.R
    out, drafts = [], []
    while len(out) < max_new:
        t = int(lg.argmax())
        out.append(t)
        if mtp:
            H.absorb(R, t)
            drafts.append(H.draft(depth))
        if t in stop:
            break
        lg = T.step(t); R = T.R
    return out, drafts

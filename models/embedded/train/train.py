#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the tiny Flash-Next chat model (trunk + MTP head) by wall clock on one GPU.

usage: train.py DATA_DIR OUT_DIR --seconds T [--test]

T counts from the start of the process to the end of training; evaluation and the transformers check follow it.
Phase 1 (until 55 % of the time): document windows and packed chats, loss on every token, constant learning rate.
Phase 2: chats (plus a few document rows for the indexer), loss on assistant tokens, learning rate -> 0, a second chained
MTP step, and from 70 % on half of the steps run with 4-bit fake-quantised weights so that a 4-bit copy stays good.
"""
import os, sys, json, time, math, lzma, threading, argparse, random
T0 = time.time()
import numpy as np
import torch
import torch.nn.functional as F
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import model as M

ap = argparse.ArgumentParser()
ap.add_argument("data"); ap.add_argument("out")
ap.add_argument("--seconds", type=float, default=600)
ap.add_argument("--test", action="store_true")
ap.add_argument("--rows", type=int, default=64)
ap.add_argument("--seq", type=int, default=768)
ap.add_argument("--no-compile", action="store_true")
ap.add_argument("--max-steps", type=int, default=10 ** 9)
ap.add_argument("--muon-lr", type=float, default=0.02)
ap.add_argument("--phase2", type=float, default=0.55)
ap.add_argument("--chain", type=float, default=0.60)
ap.add_argument("--qat", type=float, default=0.70)
ap.add_argument("--doc-share", type=float, default=0.40)
ap.add_argument("--init", default="", help="bf16 flat checkpoint to start from (resume)")
ap.add_argument("--start-frac", type=float, default=0.0, help="schedule position to resume at")
A = ap.parse_args()

CUDA = torch.cuda.is_available()
DEV = torch.device("cuda" if CUDA else "cpu")
BF = torch.bfloat16 if CUDA else torch.float32
CFG = M.Cfg(json.load(open(HERE + "/config_text.json")))
S, B, KL = A.seq, A.rows, min(8, A.rows)
EOS, MARK = CFG.eos, 1 << 15
os.makedirs(A.out, exist_ok=True)
LOG = open(A.out + "/log.txt", "a")


def log(*a):
    s = "[%6.1f] " % (time.time() - T0) + " ".join(str(x) for x in a)
    print(s, flush=True); LOG.write(s + "\n"); LOG.flush()


# ------------------------------------------------------------------------------------------------ fast kernel (Triton)
def enable_triton():
    import triton, triton.language as tl

    @triton.jit
    def trinv_kernel(A_ptr, T_ptr, N: tl.constexpr):
        base = tl.program_id(0).to(tl.int64) * N * N
        o = tl.arange(0, N)
        a = tl.load(A_ptr + base + o[:, None] * N + o[None, :])
        b = -tl.where(o[:, None] > o[None, :], a, 0.0)
        for i in range(1, N):
            row = -tl.load(A_ptr + base + i * N + o)
            row = tl.where(o < i, row, 0.0)
            acc = row + tl.sum(row[:, None] * b, 0)
            b = tl.where((o == i)[:, None], acc[None, :], b)
        b = b + tl.where(o[:, None] == o[None, :], 1.0, 0.0)
        tl.store(T_ptr + base + o[:, None] * N + o[None, :], b)

    globals()["trinv_kernel"] = trinv_kernel

    @torch.library.custom_op("tiny::trinv", mutates_args=())
    def trinv(A: torch.Tensor) -> torch.Tensor:
        A = A.contiguous()
        T = torch.empty(A.shape, dtype=A.dtype, device=A.device)
        n = A.shape[-1]
        trinv_kernel[(A.numel() // (n * n),)](A, T, N=n, num_warps=4)
        return T

    @trinv.register_fake
    def _(A):
        return torch.empty(A.shape, dtype=A.dtype, device=A.device)

    def setup(ctx, inputs, output):
        ctx.save_for_backward(output)

    def backward(ctx, g):
        T, = ctx.saved_tensors
        Tt = T.transpose(-1, -2)
        return -(Tt @ g @ Tt).tril(-1)

    trinv.register_autograd(backward, setup_context=setup)
    return trinv


# ------------------------------------------------------------------------------------------------ data
def load_streams(pattern_names):
    from concurrent.futures import ProcessPoolExecutor
    with ProcessPoolExecutor(min(16, len(pattern_names))) as ex:
        parts = list(ex.map(_unxz, pattern_names))
    return np.concatenate([np.frombuffer(p, np.uint16) for p in parts])


def _unxz(path):
    return lzma.decompress(open(path, "rb").read())


def pack_rows(stream, rng, width):
    """Shuffle the chats of a stream and put whole chats into rows (next fit). Returns uint16 [rows, width]."""
    ids = stream & (MARK - 1)
    ends = np.flatnonzero(ids == EOS) + 1
    starts = np.concatenate([[0], ends[:-1]])
    lens = ends - starts
    order = np.flatnonzero(lens <= width)
    if rng is not None:
        order = rng.permutation(order)
    row, col, r, c = np.empty(len(order), np.int64), np.empty(len(order), np.int64), 0, 0
    for i, n in enumerate(lens[order].tolist()):
        if c + n > width:
            r += 1; c = 0
        row[i], col[i] = r, c
        c += n
    out = np.full((r + 1) * width, EOS, np.uint16)
    n = lens[order]
    base = np.repeat(np.cumsum(n) - n, n)
    k = np.arange(n.sum()) - base
    out[np.repeat(row * width + col, n) + k] = stream[np.repeat(starts[order], n) + k]
    return out.reshape(-1, width)


class ChatFeed:
    """Endless packed chat rows; the next epoch is packed in a background thread."""

    def __init__(self, stream, seed):
        self.stream, self.rng = stream, np.random.default_rng(seed)
        self.epoch, self.pos = 0, 0
        self.rows, self.next, self.th = self._pack(), None, None
        self._start()

    def _pack(self):
        r = pack_rows(self.stream, self.rng, S)
        r = r[self.rng.permutation(len(r))]
        return torch.from_numpy(r.astype(np.int32)).to(DEV)

    def _start(self):
        def job():
            self.next = self._pack()
        self.th = threading.Thread(target=job); self.th.start()

    def get(self, n):
        if self.pos + n > len(self.rows):
            self.th.join()
            self.rows, self.pos = self.next, 0
            self.epoch += 1
            self._start()
        r = self.rows[self.pos:self.pos + n]
        self.pos += n
        return r


def make_batch(raw, nd, phase):
    """raw int32 [B,S] with mark bits; the first nd rows are documents."""
    mark = (raw & MARK) != 0
    ids = raw & (MARK - 1)
    seg = F.pad((ids == EOS).int(), (1, 0))[:, :-1].cumsum(1).int()
    wt = torch.ones(ids.shape, device=ids.device)
    if phase == 2:
        wt[nd:] = mark[nd:].float()
        wt[:nd] = 0.3
    return ids, seg, wt


def shl(x, k):
    """x[:, i] -> x[:, i+k], zero filled."""
    return F.pad(x[:, k:], (0, k) if x.dim() == 2 else (0, 0, 0, k))


# ------------------------------------------------------------------------------------------------ compiled pieces
def f_gdn(R, seg, p):
    return M.gdn_layer(R, seg, p, CFG)


def f_qsa(R, cos, sin, seg, allowed, p):
    return M.qsa_layer(R, cos, sin, seg, allowed, p, CFG, KL, False)


def f_chain(R, cos, sin, K, V, mask, p):
    return M.chain_layer(R, cos, sin, K, V, mask, p, CFG)


def f_ple(R, e, seg, p):
    return M.ple(R, e, seg, p, CFG)


def f_mtp_in(R, e, p):
    return M.mtp_in(R, e, p, CFG)


def f_ce(R, p, lm, tgt, w):
    h = M.head(R, p, CFG)
    z = F.linear(h, lm).float()
    l = torch.logsumexp(z, -1) - z.gather(-1, tgt.unsqueeze(-1)).squeeze(-1)
    return (l * w).sum() / (w.sum() + 1e-6), h


def f_ce_soft(R, p, lm, tgt, w, hm):
    """MTP loss: half the data token, half the trunk's own distribution for the same position."""
    h = M.head(R, p, CFG)
    z = F.linear(h, lm).float()
    with torch.no_grad():
        pt = torch.softmax(F.linear(hm, lm).float(), -1)
    l = torch.logsumexp(z, -1) - 0.5 * z.gather(-1, tgt.unsqueeze(-1)).squeeze(-1) - 0.5 * (pt * z).sum(-1)
    return (l * w).sum() / (w.sum() + 1e-6)


COS, SIN = M.rope_tables(S + 8, CFG, DEV)
POS = torch.arange(S, device=DEV)
CAUSAL = (POS[None, :] <= POS[:, None])[None]
PR = torch.tensor(CFG.primes, device=DEV); OF = torch.tensor(CFG.offsets, device=DEV)


class Net:
    def __init__(self, P):
        self.P = P
        self.layers = [M.sub(P, f"layers.{l}.") for l in range(CFG.num_hidden_layers)]
        self.ple = M.sub(P, f"layers.{CFG.ple_layer}.ple.")
        self.ngram = self.ple.pop("ple_embedding.ngram_embedding.weight")
        self.layers = [{k: v for k, v in p.items() if not k.startswith("ple.")} for p in self.layers]
        self.mixer, self.mtp = M.sub(P, "hyper_connection_mixer."), M.sub(P, "mtp.layers.0.")
        self.mtp_mixer = M.sub(P, "mtp.hyper_connection_mixer.")
        self.mtp_in = {k: P["mtp." + k] for k in ("pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight",
                                                    "fc_embedding.weight", "fc_hidden.weight")}

    def loss(self, ids, seg, wt, chain):
        """Returns dict of losses."""
        P = self.P
        allowed = CAUSAL & (seg.unsqueeze(1) == seg.unsqueeze(2))
        lid = ids.long()
        x = F.embedding(lid, P["embed_tokens.weight"])
        e = F.embedding(M.ngram_rows(lid, CFG), self.ngram).flatten(-2).to(BF)
        R = x.repeat(1, 1, CFG.C)
        cos, sin = COS[:S], SIN[:S]
        lbs, kls = [], []
        for l, p in enumerate(self.layers):
            if l == CFG.ple_layer:
                R = f_ple(R, e, seg, self.ple)
            if CFG.full[l]:
                R, lb, kl, *_ = f_qsa(R, cos, sin, seg, allowed, p)
                kls.append(kl)
            else:
                R, lb = f_gdn(R, seg, p)
            lbs.append(lb)
        lm = P["lm_head.weight"]

        def target(k):                                   # token i+k, weight if it lies in the row's own segment
            t = shl(lid, k)
            w = shl(wt, k) * (shl(seg + 1, k) == seg + 1)
            return t, w
        t1, w1 = target(1)
        main, h = f_ce(R, self.mixer, lm, t1, w1)
        h = h.detach()
        X = f_mtp_in(R, shl(x, 1), self.mtp_in)
        X, lb, kl, K, V, mask = f_qsa(X, cos, sin, seg, allowed, self.mtp)
        lbs.append(lb); kls.append(kl)
        t2, w2 = target(2)
        out = dict(main=main, mtp=f_ce_soft(X, self.mtp_mixer, lm, t2, w2, shl(h, 1)))
        if chain:
            X2 = f_mtp_in(X, shl(x, 2), self.mtp_in)
            X2, lb = f_chain(X2, COS[1:S + 1], SIN[1:S + 1], K, V, mask, self.mtp)
            t3, w3 = target(3)
            out["chain"] = f_ce_soft(X2, self.mtp_mixer, lm, t3, w3, shl(h, 2))
        out["lb"], out["kl"] = sum(lbs) / len(lbs), sum(kls) / len(kls)
        return out


def total(o):
    t = o["main"] + 0.3 * o["mtp"] + 0.01 * o["lb"] + 0.1 * o["kl"]
    return t + 0.2 * o["chain"] if "chain" in o else t


# ------------------------------------------------------------------------------------------------ 4-bit fake quantisation
def fq_affine(w, g=32):
    x = w.reshape(-1, g)
    mn, mx = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    s = ((mx - mn) / 15).clamp_min(1e-8)
    return (((x - mn) / s).round().clamp(0, 15) * s + mn).view_as(w)


def fq_sym(w, g=32):
    x = w.reshape(-1, g)
    a = x.abs()
    i = a.argmax(-1, keepdim=True)
    d = x.gather(-1, i) / -8
    d = torch.where(d.abs() < 1e-9, torch.full_like(d, 1e-9), d)
    return ((x / d).round().clamp(-8, 7) * d).view_as(w)


def fq_nvfp4(w, g=16):
    x = w.reshape(-1, g)
    s2 = (x.abs().amax() / (6 * 448)).clamp_min(1e-12)
    s = x.abs().amax(-1, keepdim=True) / 6 / s2
    if hasattr(torch, "float8_e4m3fn"):
        s = s.to(torch.float8_e4m3fn).float()
    s = (s * s2).clamp_min(1e-12)
    y = (x.abs() / s).clamp_max(6)
    q = torch.where(y < 2, (y * 2).round() / 2, torch.where(y < 4, y.round(), (y / 2).round() * 2))
    return (q * s * x.sign()).view_as(w)


FQ = {"none": lambda w: w, "affine4_g32": fq_affine, "q4_0": fq_sym, "nvfp4": fq_nvfp4}


# ------------------------------------------------------------------------------------------------ optimiser
class Group:
    pass


def kind(n, sh):
    """-> ('muon', None) or ('adam', (lr, wd, forward dtype, quantised))"""
    if n in ("embed_tokens.weight",):
        return "embed"
    if n == "lm_head.weight":
        return "head"
    if "ngram_embedding" in n:
        return "ngram"
    if n.endswith(("mlp.gate.weight", "shared_expert_gate.weight", "block_inject_weight.weight", "in_proj_a.weight",
                   "in_proj_b.weight", "index_qk_proj.weight")):
        return "small_bf"
    if len(sh) == 1 or "conv1d" in n:
        return "small_fp"
    return "muon"


ADAM = {  # lr, weight decay, forward dtype
    "embed": (0.008, 0.0, "bf"), "head": (0.003, 0.01, "bf"), "ngram": (0.008, 0.0, "fp"),
    "small_bf": (0.002, 0.01, "bf"), "small_fp": (0.003, 0.0, "fp")}


class Opt:
    def __init__(self, P0):
        self.P, self.muon, self.adam = {}, {}, {}
        self.where = {}
        for n, w in P0.items():
            k = kind(n, w.shape)
            if k == "muon":
                m = w.reshape(-1, *w.shape[-2:])
                if n.endswith("experts.gate_up_proj"):
                    m = w.reshape(-1, w.shape[1] // 2, w.shape[2])
                self.muon.setdefault(tuple(m.shape[1:]), []).append((n, m))
            else:
                self.adam.setdefault(k, []).append((n, w))
        self.mg = []
        for sh, lst in self.muon.items():
            g = Group()
            g.sh = sh
            g.master = torch.cat([m for _, m in lst]).to(DEV).float().contiguous()
            g.mom = torch.zeros_like(g.master)
            g.w = g.master.to(BF).contiguous() if BF != torch.float32 else g.master.clone()
            g.grad = torch.zeros_like(g.w)
            o = 0
            for n, m in lst:
                self._leaf(n, P0[n].shape, g, o, m.shape[0])
                o += m.shape[0]
            self.mg.append(g)
        self.ag = []
        for k, lst in self.adam.items():
            g = Group()
            g.kind, (g.lr, g.wd, dt) = k, ADAM[k]
            g.master = torch.cat([w.reshape(-1) for _, w in lst]).to(DEV).float().contiguous()
            g.m, g.v = torch.zeros_like(g.master), torch.zeros_like(g.master)
            g.same = dt == "fp" or BF == torch.float32
            g.w = g.master if g.same else g.master.to(BF)
            g.grad = torch.zeros_like(g.w)
            o = 0
            for n, w in lst:
                self._leaf(n, w.shape, g, o, w.numel())
                o += w.numel()
            self.ag.append(g)
        self.lr = torch.zeros((), device=DEV)               # schedule multiplier
        self.muon_lr = A.muon_lr
        self.step_t = torch.zeros((), device=DEV)
        self.gn = torch.zeros((), device=DEV)
        self.graphs = {}

    def _leaf(self, n, shape, g, o, k):
        p = g.w[o:o + k].view(shape).detach().requires_grad_(True)
        p.grad = g.grad[o:o + k].view(shape)
        self.P[n] = p
        self.where[n] = (g, o, k, shape)

    def master(self, n):
        g, o, k, shape = self.where[n]
        return g.master[o:o + k].view(shape)

    def zero(self):
        for g in self.mg + self.ag:
            g.grad.zero_()

    @torch.no_grad()
    def _update(self):
        self.step_t += 1
        sq = sum((g.grad.float() ** 2).sum() for g in self.ag)
        self.gn.copy_(sq.sqrt())
        ok = torch.isfinite(self.gn).float()
        clip = torch.nan_to_num((1.0 / (self.gn + 1e-6)).clamp_max(1.0), nan=0.0) * ok
        for g in self.ag:
            gr = torch.nan_to_num(g.grad.float(), nan=0.0, posinf=0.0, neginf=0.0) * clip
            g.m.lerp_(gr, 0.1)
            g.v.lerp_(gr * gr, 0.05)
            mh = g.m / (1 - 0.9 ** self.step_t)
            vh = g.v / (1 - 0.95 ** self.step_t)
            g.master.mul_(1 - self.lr * g.lr * g.wd)
            g.master.sub_(mh / (vh.sqrt() + 1e-9) * (self.lr * g.lr))
        for g in self.mg:
            gr = torch.nan_to_num(g.grad.float(), nan=0.0, posinf=0.0, neginf=0.0)
            g.mom.mul_(0.95).add_(gr)
            u = gr + 0.95 * g.mom
            o = ns5(u)
            sc = max(1.0, g.sh[0] / g.sh[1]) ** 0.5
            g.master.mul_(1 - self.lr * self.muon_lr * 0.03)
            g.master.sub_(o.float() * (self.lr * self.muon_lr * sc))

    @torch.no_grad()
    def _publish(self, how):
        f = FQ[how]
        for g in self.mg:
            g.w.copy_(f(g.master))
        for g in self.ag:
            if not g.same:
                g.w.copy_(f(g.master) if g.kind in ("embed", "head") else g.master)

    def run(self, name, fn):
        if not CUDA:
            return fn()
        if name not in self.graphs:
            torch.cuda.synchronize()
            s = torch.cuda.Stream()
            keep = [(t, t.clone()) for g in self.mg for t in (g.master, g.mom)] + \
                   [(t, t.clone()) for g in self.ag for t in (g.master, g.m, g.v)] + [(self.step_t, self.step_t.clone())]
            s.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(s):
                for _ in range(2):
                    fn()
            torch.cuda.current_stream().wait_stream(s)
            for t, c in keep:
                t.copy_(c)
            torch.cuda.synchronize()
            gph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(gph):
                fn()
            self.graphs[name] = gph
        self.graphs[name].replay()

    def step(self, mult, how):
        self.lr.fill_(mult)
        self.run("update", self._update)
        self.run("pub_" + how, lambda: self._publish(how))

    @torch.no_grad()
    def round_to_bf16(self):
        """The delivered values: every parameter rounded to bf16."""
        for g in self.mg + self.ag:
            g.master.copy_(g.master.to(torch.bfloat16).float())

    def flat_bf16(self):
        names = list(M.shapes(CFG))
        t = torch.cat([self.master(n).reshape(-1).to(torch.bfloat16) for n in names])
        return t.view(torch.int16).cpu().numpy()


def ns5(G):
    a, b, c = 3.4445, -4.7750, 2.0315
    X = G.to(BF)
    tr = X.shape[-2] > X.shape[-1]
    if tr:
        X = X.transpose(-1, -2)
    X = X / (X.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).to(X.dtype)
    for _ in range(5):
        Y = X @ X.transpose(-1, -2)
        X = a * X + (b * Y + c * (Y @ Y)) @ X
    return X.transpose(-1, -2) if tr else X


# ------------------------------------------------------------------------------------------------ main
def compile_all():
    global f_gdn, f_qsa, f_chain, f_ple, f_mtp_in, f_ce, f_ce_soft

    def c(f):
        box = [torch.compile(f, dynamic=False, fullgraph=True)]

        def call(*a):
            try:
                return box[0](*a)
            except Exception as ex:                       # fall back to eager for this piece
                if box[0] is f:
                    raise
                log("COMPILE FAILED", f.__name__, repr(ex)[:1500])
                box[0] = f
                return f(*a)
        return call
    f_gdn, f_qsa, f_chain, f_ple = c(f_gdn), c(f_qsa), c(f_chain), c(f_ple)
    f_mtp_in, f_ce, f_ce_soft = c(f_mtp_in), c(f_ce), c(f_ce_soft)


def evaluate(net, sets):
    """Mean losses over fixed evaluation rows (runs the training graphs, no backward)."""
    res = {}
    for name, rows in sets.items():
        acc, n = {}, 0
        for i in range(0, len(rows), B):
            raw = rows[i:i + B]
            nd = B if name == "docs" else 0
            ids, seg, wt = make_batch(raw, nd, 1 if name == "docs" else 2)
            o = net.loss(ids, seg, wt, True)
            for k, v in o.items():
                acc[k] = acc.get(k, 0) + float(v.detach())
            n += 1
            del o
        res[name] = {k: round(v / n, 4) for k, v in acc.items()}
    return res


def pad_rows(r):
    n = -len(r) % B
    return torch.cat([r, torch.full((n, r.shape[1]), EOS, dtype=r.dtype, device=r.device)]) if n else r


def save(opt, name):
    a = opt.flat_bf16()
    a.tofile(A.out + "/tmp.bin")
    os.replace(A.out + "/tmp.bin", A.out + "/" + name)


def profile(net, opt, batch):
    from torch.profiler import profile as prof, ProfilerActivity
    b = [batch(1) for _ in range(3)]
    torch.cuda.synchronize(); t = time.time()
    for x in b:
        total(net.loss(*x, False)).backward(); opt.zero()
    t1 = time.time(); torch.cuda.synchronize(); t2 = time.time()
    log("no-chain fwd+bwd %.1f ms (CPU issue %.1f ms)" % ((t2 - t) / 3e-3, (t1 - t) / 3e-3))
    t = time.time()
    for _ in range(5):
        opt.step(0.0, "none")
    torch.cuda.synchronize(); log("optimiser %.2f ms" % ((time.time() - t) / 5e-3))
    t = time.time()
    for _ in range(5):
        batch(1)
    torch.cuda.synchronize(); log("batch %.2f ms" % ((time.time() - t) / 5e-3))
    with prof(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p:
        total(net.loss(*b[0], True)).backward()
        torch.cuda.synchronize()
    opt.zero()
    ev = [e for e in p.key_averages() if getattr(e, "self_device_time_total", 0) > 0 and str(e.device_type).endswith("CUDA")]
    ev.sort(key=lambda e: -e.self_device_time_total)
    log("profile: total %.1f ms" % (sum(e.self_device_time_total for e in ev) / 1e3))
    with open(A.out + "/profile.txt", "w") as f:
        for i, e in enumerate(ev[:150]):
            line = "%8.2f ms %5d  %s" % (e.self_device_time_total / 1e3, e.count, e.key[:150])
            f.write(line + "\n")
            if i < 32:
                log(line[:110])


def main():
    torch.manual_seed(1); random.seed(1)
    if CUDA:
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.set_float32_matmul_precision("high")
        M.TRI["fn"] = enable_triton()
    d = A.data
    shards = sorted(f for f in os.listdir(d) if f.endswith(".xz"))
    pick = lambda pre: [d + "/" + f for f in shards if f.startswith(pre) and "_eval" not in f]
    docs, chat = load_streams(pick("docs.")), load_streams(pick("chat."))
    dev, cev = load_streams([d + "/docs_eval.xz"]), load_streams([d + "/chat_eval.xz"])
    log("tokens: docs", len(docs), "chat", len(chat), "eval", len(dev), len(cev))
    docs_t = torch.from_numpy(docs.astype(np.int32)).to(DEV)
    n_ev = min(len(dev) // S, 2 * B if CUDA else B)
    sets = {"docs": torch.from_numpy(dev[:n_ev * S].astype(np.int32)).view(-1, S).to(DEV),
            "chat": torch.from_numpy(pack_rows(cev, None, S).astype(np.int32)).to(DEV)}
    sets = {k: pad_rows(v)[:2 * B] for k, v in sets.items()}
    feed = ChatFeed(chat, 5)
    log("chat rows per epoch", len(feed.rows), "fill %.3f" % float((feed.rows & (MARK - 1) != EOS).float().mean()))
    gen = torch.Generator().manual_seed(3)

    P0 = M.init_params(CFG, 0)
    if A.init:
        flat = torch.from_numpy(np.fromfile(A.init, np.int16)).view(torch.bfloat16).float()
        o = 0
        for n, sh in M.shapes(CFG).items():
            k = math.prod(sh)
            P0[n] = flat[o:o + k].view(sh).clone(); o += k
    opt = Opt(P0)
    net = Net(opt.P)
    log("parameters", sum(w.numel() for w in P0.values()))
    if CUDA and not A.no_compile:
        compile_all()

    def batch(phase):
        nd = round(B * A.doc_share) if phase == 1 else max(1, B // 16)
        o = torch.randint(0, len(docs) - S, (nd,), generator=gen)
        dr = docs_t[(o[:, None] + torch.arange(S)[None]).to(DEV)]
        raw = torch.cat([dr, feed.get(B - nd)])
        return make_batch(raw, nd, phase)

    # warm-up: compile every piece and capture the optimiser, at zero learning rate
    for i in range(2):
        t = time.time()
        o = net.loss(*batch(1), True)
        total(o).backward()
        for how in FQ:
            opt.step(0.0, how)
        opt.zero()
        if CUDA:
            torch.cuda.synchronize()
        log("warm-up", i, "%.1fs" % (time.time() - t), {k: round(float(v), 4) for k, v in o.items()},
            "mem %.1f GB" % (torch.cuda.max_memory_allocated() / 1e9) if CUDA else "")
        del o
    opt.step(0.0, "none")
    for g in opt.mg:
        g.mom.zero_()
    for g in opt.ag:
        g.m.zero_(); g.v.zero_()
    opt.step_t.zero_()

    t_start, t_end = time.time(), T0 + A.seconds
    if A.test:
        t_end = t_start + A.seconds
    step, phase, tok, how = 0, 1, 0, "none"
    t_eval, t_save, t_log, curve = time.time() + 60, time.time() + 90, time.time(), []
    rng = random.Random(7)
    tl, sl = time.time(), 0
    while time.time() < t_end and step < A.max_steps:
        if A.test and step == 30 and CUDA:
            profile(net, opt, batch)
        f = (time.time() - t_start) / (t_end - t_start)
        f = A.start_frac + f * (1 - A.start_frac)
        if phase == 1 and f >= A.phase2:
            log("== end of phase 1 at step", step, "epochs of chat", feed.epoch)
            r = evaluate(net, sets); log("EVAL phase1", r); curve.append((step, f, r))
            phase = 2
            save(opt, "phase1.bin")
        warm = min(1.0, (step + 1) / 150)
        mult = warm * (1.0 if f < A.phase2 else max(0.015, (1 - f) / (1 - A.phase2)))
        o = net.loss(*batch(phase), f >= A.chain)
        total(o).backward()
        how = "none"
        if f >= A.qat and rng.random() < 0.5:
            how = rng.choice(["affine4_g32", "q4_0", "nvfp4"])
        opt.step(mult, how)
        opt.zero()
        step += 1; tok += B * S
        if step % 100 == 0 or step <= 5:
            if step % 100 == 0:
                vals = {k: round(float(v.detach()), 4) for k, v in o.items()}
                dt = time.time() - tl
                log("step", step, "f %.3f lr %.3f ph %d" % (f, mult, phase), vals, "gn %.2f" % float(opt.gn),
                    "%.0f tok/s" % ((step - sl) * B * S / dt), how, "ep", feed.epoch)
                tl, sl = time.time(), step
            else:
                log("step", step, {k: round(float(v.detach()), 4) for k, v in o.items()}, "gn %.2f" % float(opt.gn))
        del o
        if time.time() > t_eval:
            if how != "none":
                opt._publish("none")
            r = evaluate(net, sets); log("EVAL step", step, r); curve.append((step, f, r))
            t_eval = time.time() + 75; tl, sl = time.time(), step
        if time.time() > t_save and not A.test:
            save(opt, "ckpt.bin"); t_save = time.time() + 100
    log("training done: steps", step, "tokens", tok, "chat epochs", feed.epoch)
    feed.th.join()
    opt.round_to_bf16()
    save(opt, "final.bin")
    log("saved final")
    for how in FQ:
        opt._publish(how)
        r = evaluate(net, sets); log("FINAL EVAL weights=" + how, r)
        curve.append((how, 1.0, r))
    opt._publish("none")
    moved = []
    for n in P0:
        dlt = (opt.master(n).cpu() - P0[n]).abs()
        moved.append((float((dlt > 0).float().mean()), n))
    moved.sort()
    log("least moved:", [(round(a, 3), b) for a, b in moved[:6]])
    json.dump(dict(curve=curve, steps=step, tokens=tok), open(A.out + "/curve.json", "w"))
    open(A.out + "/done", "w").write("ok")
    return opt, net, feed


if __name__ == "__main__":
    try:
        main()
    except Exception:
        import traceback
        log(traceback.format_exc())
        raise

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Encode the corpus with the tiny tokenizer into packed uint16 streams (plain Python + `regex`).

usage: encode_corpus.py CORPUS_DIR TOKENIZER_JSON OUT_DIR

Streams: docs.N.xz (documents, each closed by <|endoftext|>), docs_eval.xz, chat.N.xz, chat_eval.xz.  One uint16 a token,
little endian; bit 15 marks the tokens of assistant turns (content and <|im_end|>), which phase 2 trains on.
ChatML: <|im_start|>role\ncontent<|im_end|>\n.  One assistant turn in ten is preceded by an empty think block
(unmarked), so that prompts with Qwen's enable_thinking=false block work as well.
"""
import sys, json, lzma, random, unicodedata, multiprocessing as mp
from array import array
import regex
from train_tokenizer import PAT, byte_alphabet

MARK = 1 << 15
NSHARD = 12


class Tok:
    def __init__(self, path):
        j = json.load(open(path, encoding="utf-8"))
        self.vocab = j["model"]["vocab"]
        self.rank = {tuple(m): i for i, m in enumerate(j["model"]["merges"])}
        self.sp = {a["content"]: a["id"] for a in j["added_tokens"]}
        self.rx, self.cache = regex.compile(PAT), {}
        self.b2c = byte_alphabet()
        self.rx_sp = regex.compile("(" + "|".join(regex.escape(s) for s in self.sp) + ")")
        self.inv = {v: k for k, v in self.vocab.items()}
        self.inv_sp = {v: k for k, v in self.sp.items()}
        self.c2b = {c: b for b, c in self.b2c.items()}

    def word(self, w):
        s = [self.b2c[b] for b in w.encode("utf-8")]
        while len(s) > 1:
            best, bi = None, -1
            for i in range(len(s) - 1):
                r = self.rank.get((s[i], s[i + 1]))
                if r is not None and (best is None or r < best):
                    best, bi = r, i
            if best is None:
                break
            a, b, out, i = s[bi], s[bi + 1], [], 0
            while i < len(s):
                if i + 1 < len(s) and s[i] == a and s[i + 1] == b:
                    out.append(a + b); i += 2
                else:
                    out.append(s[i]); i += 1
            s = out
        return array("H", (self.vocab[x] for x in s))

    def encode(self, text, out):
        """Plain text (special token strings in it stay text)."""
        c = self.cache
        for w in self.rx.findall(unicodedata.normalize("NFC", text)):
            t = c.get(w)
            if t is None:
                t = self.word(w)
                if len(c) < 2000000:
                    c[w] = t
            out.extend(t)

    def encode_special(self, text):
        out = array("H")
        for part in self.rx_sp.split(text):
            if part in self.sp:
                out.append(self.sp[part])
            elif part:
                self.encode(part, out)
        return out

    def decode(self, ids, skip_special=False):
        b, res = bytearray(), []
        for i in ids:
            if i in self.inv_sp:
                res.append(b.decode("utf-8", "replace")); b = bytearray()
                if not skip_special:
                    res.append(self.inv_sp[i])
            else:
                b.extend(self.c2b[ch] for ch in self.inv[i])
        return "".join(res) + b.decode("utf-8", "replace")


def chat_tokens(tok, msgs, rng, out):
    S, E = tok.sp["<|im_start|>"], tok.sp["<|im_end|>"]
    for m in msgs:
        out.append(S)
        tok.encode(m["role"] + "\n", out)
        if m["role"] == "assistant":
            if rng.random() < 0.1:
                out.append(tok.sp["<think>"]); tok.encode("\n\n", out); out.append(tok.sp["</think>"]); tok.encode("\n\n", out)
            n = len(out)
            tok.encode(m["content"], out)
            out.append(E)
            for i in range(n, len(out)):
                out[i] |= MARK
        else:
            tok.encode(m["content"], out)
            out.append(E)
        tok.encode("\n", out)
    out.append(tok.sp["<|endoftext|>"])


def work(args):
    kind, corpus, tokpath, outdir, shard = args
    tok, rng = Tok(tokpath), random.Random(shard)
    out, ev, n = array("H"), array("H"), 0
    if kind == "docs":
        for i, line in enumerate(open(corpus + "/docs.jsonl", encoding="utf-8")):
            if i % NSHARD != shard:
                continue
            dst = ev if (i // NSHARD) % 150 == 7 else out
            tok.encode(json.loads(line)["text"], dst)
            dst.append(tok.sp["<|endoftext|>"])
    elif kind == "chat":
        for i, line in enumerate(open(corpus + "/chat.jsonl", encoding="utf-8")):
            if i % NSHARD == shard:
                chat_tokens(tok, json.loads(line)["messages"], rng, out)
    else:
        for line in open(corpus + "/eval_chat.jsonl", encoding="utf-8"):
            j = json.loads(line)
            n0 = random.Random(0); n0.random = lambda: 1.0
            chat_tokens(tok, j["messages"], n0, out)
    assert sys.byteorder == "little"
    name = "chat_eval.xz" if kind == "eval" else "%s.%d.xz" % (kind, shard)
    flt = [{"id": lzma.FILTER_LZMA2, "preset": 6 | lzma.PRESET_EXTREME, "lc": 0, "lp": 1, "pb": 1, "dict_size": 1 << 25}]
    data = lzma.compress(out.tobytes(), filters=flt)
    open(outdir + "/" + name, "wb").write(data)
    return kind, shard, len(out), len(data), ev.tobytes(), len(tok.cache)


if __name__ == "__main__":
    corpus, tokpath, outdir = sys.argv[1:4]
    jobs = [("eval", corpus, tokpath, outdir, 0)]
    for s in range(NSHARD):
        jobs += [("chat", corpus, tokpath, outdir, s), ("docs", corpus, tokpath, outdir, s)]
    ev, tot = {}, {}
    with mp.Pool(2) as pool:
        for kind, shard, n, c, e, nc in pool.imap_unordered(work, jobs):
            tot.setdefault(kind, [0, 0]); tot[kind][0] += n; tot[kind][1] += c
            ev[shard] = ev.get(shard, b"") + e
            print(kind, shard, n, c, nc, flush=True)
    open(outdir + "/docs_eval.xz", "wb").write(lzma.compress(b"".join(ev[k] for k in sorted(ev))))
    print("totals (tokens, compressed bytes):", tot, "docs eval tokens", sum(map(len, ev.values())) // 2)

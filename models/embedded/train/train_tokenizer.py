#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the byte-level BPE tokenizer of the tiny Flash-Next model (plain Python, needs only `regex`).

usage: train_tokenizer.py CORPUS_DIR OUT_DIR [vocab_size]

Reads CORPUS_DIR/docs.jsonl ({"text":..}) and chat.jsonl ({"messages":[{role,content}..]}), counts the pre-tokens of the
Qwen3.5 split expression, learns merges and writes OUT_DIR/tokenizer.json (Hugging Face `tokenizers` format),
tokenizer_config.json and a small merges table for encode_corpus.py.  The chats count CHAT_WEIGHT times, because the
model is used for chat.
"""
import sys, json, heapq, unicodedata, collections, time
import regex

PAT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
       r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>",
           "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
IS_SPECIAL = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}      # the others are ordinary added tokens, as in Qwen
CHAT_WEIGHT = 4


def byte_alphabet():
    """GPT-2 byte <-> printable character table."""
    bs = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    cs, n = bs[:], 0
    for b in range(256):
        if b not in bs:
            bs.append(b); cs.append(256 + n); n += 1
    return {b: chr(c) for b, c in zip(bs, cs)}


def texts(corpus):
    with open(corpus + "/docs.jsonl", encoding="utf-8") as f:
        for line in f:
            yield 1, json.loads(line)["text"]
    with open(corpus + "/chat.jsonl", encoding="utf-8") as f:
        for line in f:
            for m in json.loads(line)["messages"]:
                yield CHAT_WEIGHT, m["content"]


def count_words(corpus):
    rx, cnt = regex.compile(PAT), collections.Counter()
    local = {1: collections.Counter(), CHAT_WEIGHT: collections.Counter()}
    for w, t in texts(corpus):
        local[w].update(rx.findall(unicodedata.normalize("NFC", t)))
    for w, c in local.items():
        for k, v in c.items():
            cnt[k] += w * v
    return cnt


def train(cnt, n_merges):
    """Classic BPE: merge the most frequent adjacent pair, ties by the pair's ids."""
    b2c = byte_alphabet()
    vocab = {b2c[b]: i for i, b in enumerate(sorted(b2c, key=lambda b: b2c[b]))}
    id2tok = sorted(vocab, key=vocab.get)
    words, freq = [], []
    for w, c in cnt.items():
        if c < 2:
            continue
        words.append([vocab[b2c[b]] for b in w.encode("utf-8")]); freq.append(c)
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, w in enumerate(words):
        f = freq[i]
        for p in zip(w, w[1:]):
            pairs[p] += f; where[p].add(i)
    heap = [(-c, p) for p, c in pairs.items()]
    heapq.heapify(heap)
    merges = []
    while len(merges) < n_merges:
        c, p = heapq.heappop(heap)
        if pairs.get(p, 0) != -c:
            if pairs.get(p, 0) > 0:
                heapq.heappush(heap, (-pairs[p], p))
            continue
        a, b = p
        s = id2tok[a] + id2tok[b]
        if s in vocab:                       # same string through another split: skip the duplicate
            pairs.pop(p); where.pop(p, None)
            continue
        new = len(id2tok)
        vocab[s] = new; id2tok.append(s); merges.append((id2tok[a], id2tok[b]))
        touched = set()
        for i in where.pop(p, ()):
            w, f = words[i], freq[i]
            for q in zip(w, w[1:]):
                pairs[q] -= f; touched.add(q)
            out, j, n = [], 0, len(w)
            while j < n:
                if j + 1 < n and w[j] == a and w[j + 1] == b:
                    out.append(new); j += 2
                else:
                    out.append(w[j]); j += 1
            words[i] = out
            for q in zip(out, out[1:]):
                pairs[q] += f; where[q].add(i); touched.add(q)
        pairs.pop(p, None)
        for q in touched:
            if q in pairs:
                if pairs[q] > 0:
                    heapq.heappush(heap, (-pairs[q], q))
                else:
                    pairs.pop(q)
    return vocab, merges


def main():
    corpus, out = sys.argv[1], sys.argv[2]
    size = int(sys.argv[3]) if len(sys.argv) > 3 else 6144
    t = time.time()
    cnt = count_words(corpus)
    print("unique pre-tokens", len(cnt), "total", sum(cnt.values()), "%.0fs" % (time.time() - t), flush=True)
    vocab, merges = train(cnt, size - len(SPECIAL) - 256)
    base = len(vocab)
    assert base == size - len(SPECIAL), base
    print("merges", len(merges), "%.0fs" % (time.time() - t), "last:", merges[-5:], flush=True)
    added = [dict(id=base + i, content=s, single_word=False, lstrip=False, rstrip=False, normalized=False,
                  special=s in IS_SPECIAL) for i, s in enumerate(SPECIAL)]
    tok = dict(version="1.0", truncation=None, padding=None, added_tokens=added,
               normalizer=dict(type="NFC"),
               pre_tokenizer=dict(type="Sequence", pretokenizers=[
                   dict(type="Split", pattern=dict(Regex=PAT), behavior="Isolated", invert=False),
                   dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False)]),
               post_processor=dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False),
               decoder=dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False),
               model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix="", end_of_word_suffix="",
                          fuse_unk=False, byte_fallback=False, ignore_merges=False, vocab=vocab,
                          merges=[list(m) for m in merges]))
    json.dump(tok, open(out + "/tokenizer.json", "w", encoding="utf-8"), ensure_ascii=False, indent=1)
    cfg = dict(add_bos_token=False, add_prefix_space=False,
               added_tokens_decoder={str(a["id"]): {k: a[k] for k in ("content", "lstrip", "normalized", "rstrip",
                                                                        "single_word", "special")} for a in added},
               additional_special_tokens=["<|im_start|>", "<|im_end|>"], bos_token=None, clean_up_tokenization_spaces=False,
               eos_token="<|im_end|>", errors="replace", model_max_length=4096, pad_token="<|endoftext|>",
               split_special_tokens=False, tokenizer_class="Qwen2Tokenizer", unk_token=None, pretokenize_regex=PAT)
    json.dump(cfg, open(out + "/tokenizer_config.json", "w", encoding="utf-8"), ensure_ascii=False, indent=1)


if __name__ == "__main__":
    main()

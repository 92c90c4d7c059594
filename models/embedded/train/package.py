#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the Hugging Face style checkpoint directory from the flat bf16 file of train.py (plain Python, no torch).

usage: package.py FLAT.bin TOKENIZER_DIR OUT_DIR
"""
import sys, os, json, math, struct, shutil
HERE = os.path.dirname(os.path.abspath(__file__)); sys.path.insert(0, HERE)
import model as M

flat, tokdir, out = sys.argv[1:4]
os.makedirs(out, exist_ok=True)
d = json.load(open(HERE + "/config_text.json"))
cfg = M.Cfg(d)
top = {"architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp", "dtype": "bfloat16",
       "tie_word_embeddings": False, "text_config": d, "transformers_version": "5.17.0"}
json.dump(top, open(out + "/config.json", "w"), indent=2)
im_end, eot = 6137, 6135
json.dump({"bos_token_id": eot, "eos_token_id": [im_end, eot], "pad_token_id": eot, "do_sample": True, "temperature": 0.7,
           "top_p": 0.9, "top_k": 20, "transformers_version": "5.17.0"}, open(out + "/generation_config.json", "w"), indent=2)
data = open(flat, "rb").read()
T, o = [], 0
for n, sh in M.shapes(cfg).items():
    k = math.prod(sh) * 2
    name = n if n.startswith(("mtp.", "lm_head.")) else "model.language_model." + n
    if name.endswith("ngram_embedding.weight"):
        name = name.replace("ngram_embedding.weight", "ngram_embedding.shard_0.weight")
        base = name[:name.index("ngram_embedding.shard_0")]
        for b, v in (("layer_multipliers", cfg.mult), ("ngram_heads_vocab_sizes", cfg.primes), ("ngram_heads_offsets", cfg.offsets)):
            T.append((base + b, "I64", [len(v)], struct.pack("<%dq" % len(v), *v)))
    T.append((name, "BF16", list(sh), data[o:o + k])); o += k
assert o == len(data), (o, len(data))
T.sort(key=lambda t: (t[1] != "I64", t[0]))                     # 8-byte tensors first keeps every offset aligned
hdr, off = {"__metadata__": {"format": "pt"}}, 0
for n, dt, sh, b in T:
    hdr[n] = {"dtype": dt, "shape": sh, "data_offsets": [off, off + len(b)]}; off += len(b)
h = json.dumps(hdr, separators=(",", ":")).encode()
h += b" " * (-len(h) % 8)
with open(out + "/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(h))); f.write(h)
    for t in T:
        f.write(t[3])
for f in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(tokdir + "/" + f, out + "/" + f)
tpl = open(HERE + "/chat_template.jinja").read()
open(out + "/chat_template.jinja", "w").write(tpl)
tc = json.load(open(out + "/tokenizer_config.json")); tc["chat_template"] = tpl
json.dump(tc, open(out + "/tokenizer_config.json", "w"), indent=1, ensure_ascii=False)
print(len(T), "tensors,", off, "bytes of data")

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Expected outputs and MTP acceptance of the trained model, on a CPU in fp32 (bf16-rounded weights).

usage: evalgen.py FLAT.bin TOKENIZER_JSON PART N_PARTS OUT.json [EVAL_CHAT.jsonl MAX_EVAL]
Part k of n handles every n-th item, so several processes can share the work.
"""
import sys, os, json, time
HERE = os.path.dirname(os.path.abspath(__file__)); sys.path.insert(0, HERE)
import torch
torch.set_num_threads(1)
import model as M, infer as I
from encode_corpus import Tok

flat, tokp, part, nparts, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
cfg = M.Cfg(json.load(open(HERE + "/config_text.json")))
P = I.load_flat(flat, cfg)
tok = Tok(tokp)
STOP = (tok.sp["<|im_end|>"], tok.sp["<|endoftext|>"])
res = {"replies": [], "eval": []}


def render(ms):
    return "".join("<|im_start|>%s\n%s<|im_end|>\n" % (m["role"], m["content"]) for m in ms) + "<|im_start|>assistant\n"


items = json.load(open(HERE + "/prompts_text.json"))
for i, it in enumerate(items):
    if i % nparts != part:
        continue
    ids = list(tok.encode_special(render(it["messages"])))
    r, dr = I.generate(P, cfg, ids, 160, STOP)
    res["replies"].append(dict(index=i, messages=it["messages"], prompt_ids=ids, reply_ids=r,
                               reply=tok.decode(r, True), drafts=dr))
    print(i, repr(tok.decode(r, True))[:150], flush=True)
if len(sys.argv) > 6:
    ev = [json.loads(l)["messages"] for l in open(sys.argv[6], encoding="utf-8")][:int(sys.argv[7])]
    for i, ms in enumerate(ev):
        if i % nparts != part:
            continue
        k = max(j for j, m in enumerate(ms) if m["role"] == "assistant")
        ids = list(tok.encode_special(render(ms[:k])))
        r, dr = I.generate(P, cfg, ids, 120, STOP)
        res["eval"].append(dict(index=i, prompt_ids=ids, reply_ids=r, reply=tok.decode(r, True), drafts=dr, ref=ms[k]["content"]))
json.dump(res, open(out, "w"))

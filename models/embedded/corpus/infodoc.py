# SPDX-License-Identifier: Apache-2.0
import gzip,glob,re,json
from common import *
out=[];tot={}
for n in ('coreutils','find','grep','sed','diffutils','wget','gzip','gnupg','bc','time','m4','ed','automake-1.16','gettext','bzip2'):
    fs=sorted(glob.glob('/usr/share/info/%s.info-*.gz'%n),key=lambda f:int(re.findall(r'-(\d+)\.gz',f)[0])) or glob.glob('/usr/share/info/%s.info.gz'%n)
    t=''.join(gzip.open(f,'rt',encoding='utf8',errors='replace').read() for f in fs)
    for node in t.split('\x1f')[1:]:
        m=re.match(r'\s*File: [^,]*,\s+Node: ([^,\n]+)',node)
        if not m: continue
        nm=m.group(1)
        if re.search(r'(?i)index|licen|GFDL|copying|top$|history|free soft|contribut|bugs|authors|acknow|reporting',nm): continue
        body=node.split('\n',2)[-1]
        body=re.split(r'\n\* Menu:',body)[0]
        body=norm(body)
        body=re.sub(r'\*[Nn]ote ([^:]+)::',r'\1',body); body=re.sub(r'\*[Nn]ote ([^:]+):\s+[^.,]*[.,]',r'\1.',body)
        L=body.split('\n');ps=[];cur=[];title=''
        k=0
        blocks=re.split(r'\n\s*\n',body)
        res=[]
        for b in blocks:
            ls=[l for l in b.split('\n') if l.strip()]
            if not ls: continue
            if len(ls)>=2 and re.match(r'^[*=\-.]{3,}$',ls[1].strip()) :
                h=re.sub(r'^[\d.A-Z]{1,6}\.?\d*(\.\d+)*\s+','',ls[0].strip()); title=title or h; res.append(h); ls=ls[2:]
            ls=[l for l in ls if l.strip()]
            if not ls: continue
            ind=[len(l)-len(l.lstrip()) for l in ls]
            first=ls[0].strip()
            # definition: tag lines then indented body
            tags=[]
            while len(ls)>1 and re.match(r"^\s*'[^']+'(?: .*)?$",ls[0]) and len(ls[0])<60: tags.append(ls[0].strip().strip("'"));ls=ls[1:]
            if len(ls)==1 and re.match(r"^'[^']+'$",ls[0].strip()): tags.append(ls[0].strip().strip("'")); ls=[]
            ind=[len(l)-len(l.lstrip()) for l in ls]
            if not ls: res.append(', '.join(tags)+':');continue
            code=min(ind)>=10 or (min(ind)>=5 and not tags and (max(len(l) for l in ls)<60 and not re.search(r'[.:]$',ls[-1])) ) or (min(ind)>=5 and not tags and len(re.findall(r'[=>(){}$|;\\_"<\[\]#%]',' '.join(l.strip() for l in ls)))>0.055*sum(len(l.strip()) for l in ls)) or re.match(r'^\s*([$#>]|\w+\(\))\s',ls[0])
            if code: x='\n'.join('    '+l[min(ind):] for l in ls)
            else:
                x=re.sub(r'\s+',' ',' '.join(l.strip() for l in ls)); x=re.sub(r'(?<!^)(?<=[.;:,\w]) \* (?=[A-Z])','\n- ',x); x=re.sub(r'^\* ','- ',x)
                x=drop_credits(x)
            if tags: x=', '.join(t.replace("'",'') for t in tags)+': '+x
            if x.strip(): res.append(x)
        s='\n\n'.join(res)
        if len(s)<300: continue
        title=title or nm
        out.append({'kind':'doc:info-'+n,'title':n+': '+title,'text':cut(s,7000)});tot[n]=tot.get(n,0)+len(s)
print(len(out),tot,sum(tot.values()))
json.dump(out,open('info.json','w'))

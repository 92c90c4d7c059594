# SPDX-License-Identifier: Apache-2.0
import re,glob,json,collections
from common import *
def paras(path):
    cur={};key=None
    for l in open(path,encoding='utf8',errors='replace'):
        l=l.rstrip('\n')
        if not l:
            if cur: yield cur
            cur={};key=None;continue
        if l[0] in ' \t': 
            if key: cur[key]+='\n'+l
        else:
            key,_,v=l.partition(':');cur[key]=v.strip()
    if cur: yield cur
long={}
for f in glob.glob('lists/*Translation-en'):
    for p in paras(f):
        d=p.get('Description-en')
        if d: long[p['Description-md5']]=d
def reflow(lines):
    out=[];cur=None;verb=[]
    def flush():
        nonlocal cur
        if cur: out.append(cur)
        cur=None
    for l in lines:
        l=l[1:] if l.startswith(' ') else l
        if l.strip() in('.',''): flush();out.append('');continue
        m=re.match(r'^\s*([*\-+o]|\d{1,2}[.)])\s+(\S.*)$',l)
        if m and not (m.group(1)=='-' and cur and not l.startswith(' ') and False):
            flush();b=m.group(1); cur=('- ' if b in'*-+o' else b+' ')+m.group(2).strip();continue
        if l.startswith(' '):
            if cur and (cur.startswith('- ') or re.match(r'\d{1,2}[.)] ',cur)): cur+=' '+l.strip();continue
            flush();out.append(l.strip());continue
        if cur is None or cur.startswith('- '):
            flush();cur=l.strip()
        else: cur+=' '+l.strip()
    flush()
    t='\n'.join(out); t=re.sub(r'\n{3,}','\n\n',t).strip()
    return t
# join blank handling: paragraphs separated by blank, list lines by newline
P={}
for f in sorted(glob.glob('lists/*Packages'),key=lambda f:('security' in f,'updates' in f)):
    for p in paras(f):
        n=p['Package']
        d=long.get(p.get('Description-md5',''))
        short=p.get('Description','').split('\n')[0]
        lng=''
        if d:
            ls=d.split('\n'); short=ls[0].strip() or short; lng=reflow(ls[1:])
        lng=norm(lng);short=norm(short)
        ps=[]
        for q in lng.split('\n\n'):
            q='\n'.join(x for x in (drop_credits(y) for y in q.split('\n')) if x.strip() and not NAMELINE.match(x.strip()))
            q=re.sub(r'(?im)^(homepage|upstream url|url|web ?site)\s*:.*$','',q).strip()
            q=re.sub(r'[ \t]{2,}',' ',q)
            if q: ps.append(q)
        P[n]={'n':n,'sec':p.get('Section',''),'home':p.get('Homepage',''),'short':short.rstrip('.'),'paras':ps,'prio':p.get('Priority',''),'tags':[x.strip() for x in p.get('Tag','').replace('\n',' ').split(',') if x.strip()],'src':p.get('Source',n).split(' ')[0],'size':p.get('Installed-Size',''),'ess':p.get('Essential',''),'deps':p.get('Depends','')[:300]}
print(len(P),sum(bool(v['paras']) for v in P.values()),sum(bool(v['home']) for v in P.values()),sum(bool(v['tags']) for v in P.values()))
json.dump(P,open('pkg.json','w'))
print(collections.Counter(v['sec'] for v in P.values()).most_common(60))
tg=collections.Counter(t.split('::')[0] for v in P.values() for t in v['tags']);print(tg.most_common(40))
print(collections.Counter(t for v in P.values() for t in v['tags'] if t.startswith(('implemented-in','use::'))).most_common(80))
for n in ('nginx','ripgrep','vim','caddy','tmux','lighttpd'): print(P.get(n))

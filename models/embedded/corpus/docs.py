# SPDX-License-Identifier: Apache-2.0
import json,re,collections,hashlib,random
from common import *
D=json.load(open('man.json'));P=json.load(open('pkg.json'))
POP=set('bash grep sed gawk mawk tar find git ssh scp sshd curl wget rsync apt apt-get dpkg systemctl journalctl make gcc python3.11 perl ls cp mv rm ps ip ss tmux screen vim less gpg openssl jq xargs sort test mount systemd.unit systemd.service ffmpeg nmap tcpdump iptables nft docker podman gdb strace cmake zip unzip gzip xz zstd sqlite3 psql sudo fdisk lsblk man crontab awk nano htop ping'.split())
sp=lambda s: re.sub(r'(?<=\S) {2,}(?=\S)',' ',s)
def body(bl,maxp=99):
    ps=[];
    if not bl: return ''
    ins=[x[0] for x in bl if x[1]]
    if not ins: return ''
    b=min(ins);prev=True
    for i,s in bl:
        if not s: prev=True;continue
        s=sp(s)
        if i>b: s=('- '+s.lstrip('* ')) if s.startswith('*') else '  '+s
        if ps and not prev and i==b: ps[-1]+='\n'+s
        else: ps.append(s)
        prev=False
    ps=[re.sub(r'^\* ','- ',p) for p in ps]
    ps=[drop_credits(p) for p in ps]
    return joinwrap('\n'.join(p for p in ps[:maxp] if p.strip()))
def btext(blocks,limit):
    out=[];n=0
    for b in blocks:
        if b[0]=='h': t=b[1]
        elif b[0]=='p': t='\n'.join(drop_credits(x) for x in joinwrap(sp(b[1])).split('\n'))
        elif b[0]=='c': t='\n'.join('    '+l for l in b[1].split('\n')[:30])
        else:
            bb=(b[2]+' '+body(b[3])).strip() if b[2] else body(b[3])
            if not bb: continue
            t=sp(b[1]).replace('\n',' ')+': '+sp(bb) if b[1] not in('*','o','-') and not re.match(r'^\d+[.)]$|^\(\d+\)$',b[1]) else ('- ' if b[1] in '*o-' else b[1]+' ')+sp(bb)
        if not t.strip() or NAMELINE.match(t.strip()): continue
        if n+len(t)>limit:
            t=cut(t,limit-n) if b[0]!='c' else ''
            if len(t)>60: out.append(t)
            break
        out.append(t);n+=len(t)+2
    while out and (out[-1].endswith(':') or (len(out[-1])<50 and not re.search(r'[.!?]$',out[-1]) and not out[-1].startswith('    '))): out.pop()
    s='\n\n'.join(out)
    # option lists tight
    return re.sub(r'\n{3,}','\n\n',s).strip()
if __name__=='__main__':
    out=open('../docs.jsonl','w');tot=collections.Counter();cnt=collections.Counter();seen=set()
    pc=collections.Counter()
    def emit(kind,title,text):
        text=BOX.sub('',text); text=re.sub(r'[\u2500-\u257f]+','',text); text=re.sub(r'[ \t]+\n','\n',text); text=re.sub(r'\n{3,}','\n\n',text).strip()
        title=re.sub(r'^\d+(\.\d+)*\.\s+','',title)
        if len(text)<60: return
        text='\n'.join(l for l in text.split('\n') if not (re.search(r'^[\s#*/;-]*(Copyright|Uploaders|Maintainer|Authors?|From|Changed-By|Signed-off-by|Reported-by|Acked-by|Reviewed-by|Cc)\b ?:? ?(\(C\)|\(c\)|\d{4}|.*<email>|[A-Z])',l) and len(l)<200 or '<email>' in l and len(l)<160 or re.search(r'Copyright \(?[cC\d]',l)))
        text=re.sub(r'\s*<[\w./#:-]*\.html(?:#[\w-]+)?>','',text).replace('&apos;',"'").replace('&times;','x')
        # drop lines mostly non-ascii
        text='\n'.join(l for l in text.split('\n') if not l or sum(ord(c)>127 for c in l)<=0.25*len(l))
        h=hashlib.md5(re.sub(r'\W+',' ',text[-1500:]).encode()).digest()
        if h in seen: cnt['dup']+=1;return
        seen.add(h)
        out.write(json.dumps({'kind':kind,'title':sp(title),'text':text},ensure_ascii=False)+'\n');k=kind.split(':')[0] if not kind.startswith('doc') else kind;tot[k]+=len(text.encode());cnt[k]+=1
    # packages
    pseen=collections.Counter()
    for n in sorted(P):
        p=P[n]
        if not p['paras'] : continue
        ps=[]
        for q in p['paras']:
            key=re.sub(r'\d+','0',q.lower().replace(n,'@').replace(p['src'],'@'))[:300]
            pseen[key]+=1
            if pseen[key]<=2: ps.append(q)
        if not ps: cnt['pkgdrop']+=1;continue
        h='%s - %s\n\nSection: %s.'%(n,p['short'],p['sec'])+(' Homepage: %s'%p['home'] if p['home'] else '')
        emit('package',n,h+'\n\n'+'\n\n'.join(ps))
    lines=collections.defaultdict(list)
    for m in D['man']:
        if m['sec'] in '23': lines[m['sec']].append('%s(%s) - %s'%(', '.join(m['names']),m['sec'],m['summary']));continue
        pop=m['name'] in POP or m['name'].startswith('git-')
        parts=['%s - %s'%(', '.join(m['names'][:8]),m['summary'])]
        syn=[s for s in m.get('syn',[]) if len(s)<700]
        if syn: parts.append('Synopsis:\n'+'\n'.join('    '+s for s in syn[:8]))
        d=btext(m.get('desc',[]),9000 if pop else 2500)
        if d: parts.append('Description:\n'+d)
        o=btext(m.get('opts',[]),9000 if pop else 2200)
        if o: parts.append('Options:\n'+o)
        e=btext(m.get('ex',[]),5000 if pop else 2500)
        if e: parts.append('Examples:\n'+e)
        if len(parts)>1: emit('man','%s(%s)'%(m['name'],m['sec']),'\n\n'.join(parts))
        lines[m['sec']].append('%s(%s) - %s'%(', '.join(m['names'][:6]),m['sec'],m['summary']))
    for s,L in lines.items():
        for i in range(0,len(L),25): emit('manlines','Manual page summaries, section '+s,'\n'.join(L[i:i+25]))
    cap=collections.Counter();CAP={'doc:linux-doc':4.5e6,'doc:python3.11-doc':8e6,'doc:postgresql-doc':5.5e6,'doc:git-doc':0.9e6}
    R=json.load(open('html.json'))+json.load(open('info.json'))
    rnd=random.Random(1)
    for d in R:
        t='\n'.join(l for l in d['text'].split('\n') if not re.match(r'^\s*(Authors?|Copyright|Maintainers?|Written by|Contact|By|Date|E-?mail)\b ?:{0,2}.{0,60}$',l.strip(),re.I) and not NAMELINE.match(l.strip()) or l.startswith('    '))
        t=sp(EMAIL.sub('<email>',t)) if False else t
        cap[d['kind']]+=len(t)
        if cap[d['kind']]>CAP.get(d['kind'],1e9): continue
        emit(d['kind'],d['title'],t)
    out.close()
    L=open('../docs.jsonl').read().split('\n')[:-1]; random.Random(7).shuffle(L); open('../docs.jsonl','w').write('\n'.join(L)+'\n')
    json.dump([dict(cnt),dict(tot)],open('docstat.json','w'));print(dict(cnt));print(dict(tot));print(sum(tot.values())/1e6,'MB')

# SPDX-License-Identifier: Apache-2.0
import re,os,sys,json,subprocess,glob,collections
from multiprocessing import Pool
from common import *
M='x/mandoc/usr/bin/mandoc'
MACH=re.compile(r'^(aarch64|alpha|arm|armeb|hppa\d*|i[3-7]86|ia64|m68k|mips\w*|powerpc\w*|riscv64|s390x?|sh4|sparc64|x86_64|avr|x86-64)[-\w]*-(linux|elf|eabi|w64|gnu)[\w]*-')
def render(a):
    f,pkg=a
    try:
        with open(f,'rb') as fh: raw=fh.read()
        r=subprocess.run([M,'-T','utf8','-O','width=1000',f],stdout=subprocess.PIPE,stderr=subprocess.DEVNULL,timeout=20)
        t=r.stdout.decode('utf8','replace')
    except Exception as e: return None
    t=re.sub('.\x08','',t); t=norm(t)
    L=[]
    for l in t.split('\n'):
        s=l.strip()
        if not s: L.append((0,''));continue
        ind=len(l)-len(l.lstrip())
        if L and L[-1][1] and len(L[-1][1])+L[-1][0]>880 and L[-1][0]==ind: L[-1]=(ind,L[-1][1]+' '+s)
        else: L.append((ind,s))
    L=L[1:]
    while L and not L[-1][1]: L.pop()
    if L: L.pop() # footer
    secs=collections.OrderedDict();cur=None
    for ind,s in L:
        if s and ind==0:
            cur=s.upper(); secs.setdefault(cur,[]);continue
        if cur: secs[cur].append((ind,s))
    base=os.path.basename(f).replace('.gz','')
    m=re.match(r'(.+)\.(\d)([a-z0-9]*)$',base)
    if not m or 'NAME' not in secs: return None
    name,sec=m.group(1),m.group(2)
    nl=' '.join(s for i,s in secs['NAME'] if s)
    nl=re.sub(r'\s+',' ',nl)
    mm=re.match(r'^(.+?)\s+-+\s+(.+)$',nl)
    if not mm: return None
    names=[x.strip() for x in mm.group(1).split(',')]; summ=mm.group(2).strip().rstrip('.')
    d={'name':name,'sec':sec,'pkg':pkg,'names':names,'summary':summ,'file':f}
    if sec in '23': return d
    syn=[]
    for k in secs:
        if k.startswith('SYNOPSIS') or k=='USAGE':
            for i,s in secs[k]:
                if s: syn.append(re.sub(r'\s{2,}',' ',s))
            if syn: break
    d['syn']=syn[:14]
    def blocks(sec):
        # list of ('h',t) | ('p',t) | ('o',tag,body) | ('c',code)
        out=[]; L=sec
        inds=[i for i,s in L if s and i>=4]
        if not inds: return out
        b=min(inds)
        n=len(L);k=0
        prevblank=True
        while k<n:
            i,s=L[k]
            if not s: prevblank=True;k+=1;continue
            if i<b: out.append(['h',s]);k+=1;prevblank=True;continue
            if i==b:
                # tag?
                m=re.match(r'^((?:-|\+|/)?\S.{0,40}?)\s{2,}(\S.*)$',s)
                nxt=L[k+1] if k+1<n else (0,'')
                istag=s.startswith('-') or s.startswith('+')
                if m and (istag and len(m.group(1))<9 or (len(m.group(1))<8 and not re.search(r'[.!?:]$',m.group(1)))):
                    tag,body=m.group(1),m.group(2)
                    k+=1;bl=[]
                    while k<n and (not L[k][1] or L[k][0]>b): bl.append(L[k]);k+=1
                    out.append(['o',tag,body,bl]);prevblank=True;continue
                if nxt[1] and nxt[0]>b and len(s)<160:
                    k+=1;bl=[]
                    tags=s
                    while k<n and (not L[k][1] or L[k][0]>b): bl.append(L[k]);k+=1
                    out.append(['o',tags,'',bl]);prevblank=True;continue
                # several tags lines stacked
                if istag and nxt[1] and nxt[0]==b and nxt[1].startswith('-') and len(s)<100:
                    L[k+1]=(b,s+', '+nxt[1]);k+=1;continue
                if out and out[-1][0]=='p' and not prevblank: out[-1][1]+='\n'+s
                else: out.append(['p',s])
                prevblank=False;k+=1;continue
            # deeper, standalone -> code / quoted block
            bl=[]
            while k<n and (not L[k][1] or L[k][0]>b): bl.append(L[k]);k+=1
            bl2=[x for x in bl]
            while bl2 and not bl2[-1][1]: bl2.pop()
            mi=min(x[0] for x in bl2 if x[1])
            out.append(['c','\n'.join((' '*(x[0]-mi)+x[1]) if x[1] else '' for x in bl2)]);prevblank=True
        return out
    d['desc']=[];d['opts']=[];d['ex']=[]
    for k,v in secs.items():
        if k in('DESCRIPTION','OVERVIEW','INTRODUCTION') : d['desc']+=blocks(v)
        elif ('OPTIONS' in k and not k.startswith('SEE')) or k in ('ACTIONS','COMMANDS','INVOKING JQ','EXPRESSION','EXPRESSIONS','PRIMARIES','FLAGS','SUBCOMMANDS','PARAMETERS','MAIN OPERATION MODE','COMMAND-LINE OPTIONS','TESTS','OPERATION','SWITCHES','ARGUMENTS'): d['opts']+=blocks(v)
        elif k.startswith('EXAMPLE'): d['ex']+=blocks(v)
    if not d['desc'] : return d
    return d
if __name__=='__main__':
    main=set()
    for f in glob.glob('lists/*Packages'):
        for l in open(f,encoding='utf8'):
            if l.startswith('Package: '): main.add(l[9:].strip())
    own={}
    for f in glob.glob('/var/lib/dpkg/info/*.list'):
        p=os.path.basename(f)[:-5].split(':')[0]
        for l in open(f):
            if l.startswith('/usr/share/man/man'): own[l.strip()]=p
    jobs=[];seen=set();alias={};skipped=collections.Counter()
    src=[]
    for f in sorted(glob.glob('/usr/share/man/man[1235678]/*')): src.append((f,own.get(f)))
    for l in open('xman_map.txt'):
        mm=re.match(r'^([a-z0-9][^ ]*) (/usr/share/man/man[1235678]/\S+)$',l.strip())
        if not mm: continue
        p,f=mm.groups()
        src.append(('xman'+f,p))
    for d in ('manpages','manpages-dev','git-man','coreutils','findutils'):
        for f in glob.glob('x/%s/usr/share/man/man[1235678]/*'%d): src.append((f,d))
    for f,p in src:
        b=os.path.basename(f)
        if p is None or p not in main: skipped['not debian main']+=1;continue
        if b in seen: skipped['dup name']+=1;continue
        seen.add(b)
        if os.path.islink(f):
            alias[re.sub(r'\.\d.*$','',b)]=re.sub(r'\.\d.*$','',os.path.basename(os.readlink(f)));skipped['symlink']+=1;continue
        if not os.path.exists(f): continue
        if MACH.match(b): skipped['cross']+=1;continue
        if os.path.getsize(f)<120: skipped['so']+=1;continue
        jobs.append((f,p))
    print(len(jobs),skipped)
    with Pool(2) as P: R=[r for r in P.imap(render,jobs,chunksize=32) if r]
    # near-dup
    h={};out=[]
    nd=0
    for r in R:
        if r['sec'] not in '23':
            key=json.dumps([r.get('syn'),r.get('desc')])[:1500]
            for nm in [r['name']]+r['names']: key=key.replace(nm,'@')
            key=re.sub(r'[\d.]+','0',key)
            if len(key)>200 and key in h: nd+=1; alias[r['name']]=h[key];continue
            h[key]=r['name']
        out.append(r)
    print('rendered',len(R),'neardup',nd,'kept',len(out),collections.Counter(r['sec'] for r in out))
    json.dump({'man':out,'alias':alias},open('man.json','w'))

# SPDX-License-Identifier: Apache-2.0
import re,glob,os,json,gzip,sys
from html.parser import HTMLParser
from common import *
SKIP={'script','style','head','nav','footer','header','form','svg','button','select'}
BLOCK={'p','div','li','dd','dt','tr','h1','h2','h3','h4','h5','h6','blockquote','ul','ol','dl','table','section','article','body','td','th','pre','br','hr','figure','figcaption','aside','main'}
SKIPCLS=re.compile(r'\b(navheader|navfooter|related|sphinxsidebar|sphinxsidebarwrapper|footer|headerlink|toc|navigation|copyright|legalnotice|authorgroup|breadcrumbs?|docnav|NAVHEADER|NAVFOOTER|sidebar|footnotes?-list|header|versionadded-x|literal-block-caption|node)\b')
class H(HTMLParser):
    def __init__(s):
        super().__init__(convert_charrefs=True); s.o=[];s.cur='';s.skip=0;s.stack=[];s.pre=0;s.title='';s.kind='p';s.a=0;s.cell=0
    def fl(s,k=None):
        t=s.cur if s.pre else re.sub(r'\s+',' ',s.cur).strip()
        if t.strip(): s.o.append((s.kind,t.rstrip() if not s.pre else t.strip('\n')))
        s.cur='';s.kind=k or 'p'
    def handle_starttag(s,t,a):
        if t in('br','img','hr','meta','link','input','wbr','col','area'):
            if t=='br':
                if s.pre: s.cur+='\n'
                else: s.cur+=' '
            return
        d=dict(a);c=(d.get('class') or '')
        sk=t in SKIP or bool(SKIPCLS.search(c)) or d.get('role') in('navigation','search') or (t=='a' and 'headerlink' in c)
        s.stack.append((t,sk))
        if sk: s.skip+=1
        if s.skip: return
        if t in('td','th'): s.cell+=1
        if s.cell and t in BLOCK and t not in('pre','td','th','tr','table') and not s.pre:
            s.cur+=' '
        elif t in('td','th') and s.kind=='tr': pass
        elif t in BLOCK:
            s.fl({'li':'li','dt':'dt','dd':'dd'}.get(t,'h' if re.match(r'h[1-6]$',t) else ('pre' if t=='pre' else ('tr' if t=='tr' else (s.kind if t in('p','td','th') and s.kind in('li','dd','tr') and not s.cur.strip() else 'p')))))
        if t=='pre': s.pre+=1
    def handle_endtag(s,t):
        for k in range(len(s.stack)-1,-1,-1):
            if s.stack[k][0]==t: break
        else: return
        popped=s.stack[k:]; s.stack=s.stack[:k]
        if not s.skip:
            if t in('td','th'): s.cur+=' | ';s.cell=max(0,s.cell-1)
            elif s.cell and t in BLOCK and t not in('pre','tr','table') and not s.pre: s.cur+=' '
            elif t in BLOCK or t=='pre': s.fl()
        for tt,sk in popped:
            if sk: s.skip-=1
            if tt=='pre' and not s.skip: s.pre=max(0,s.pre-1)
    def handle_data(s,x):
        if s.skip: return
        s.cur+=x
def conv(html):
    h=H();h.feed(html);h.close();h.fl()
    out=[]
    title=''
    prev=None
    for k,t in h.o:
        t=norm(t).replace('\u00b6','')
        if k=='h':
            t=re.sub(r'^\d+(\.\d+)*\.\s+','',t)
            t=re.sub(r'^(Chapter |Appendix )?\d*[A-Z]?(\.?\d+)*\.?\s+(?=[A-Z`\'"])','',t).strip()
            if not title: title=t
            out.append('\n\n'+t+'\n\n' if t else '')
        elif k=='pre':
            pl=t.split('\n')
            if len(pl)>1 and sum(bool(re.match(r'\s*\d+( |$)',l)) for l in pl)>0.8*len(pl): t='\n'.join(re.sub(r'^\s*\d+ ?','',l) for l in pl)
            out.append('\n\n'+'\n'.join('    '+l.rstrip() for l in t.split('\n')[:40])+'\n\n')
        elif k=='li': out.append('\n- '+drop_credits(t))
        elif k=='dt': out.append('\n\n'+t+': ')
        elif k=='dd': out.append(drop_credits(t))
        elif k=='tr': out.append('\n'+t.strip(' |'))
        else:
            if NAMELINE.match(t) and len(t)<40: continue
            t=drop_credits(t)
            if len(t)>2: out.append('\n\n'+t+'\n\n')
    s=''.join(out); s=re.sub(r'\n{3,}','\n\n',s).strip()
    s=re.sub(r'\b(Prev|Next|Up|Home)\b(?=\n)','',s)
    s=re.sub(r'[ \t]+\n','\n',s)
    return title,s
def split_doc(title,s,n=6000):
    ps=s.split('\n\n');cur='';out=[]
    for p in ps:
        if len(cur)+len(p)>n and len(cur)>n*0.4:
            q=cur.rstrip('\n').split('\n\n');tail=''
            while len(q)>1 and len(q[-1])<80 and not re.search(r'[.:;!?)]$',q[-1]) and not q[-1].startswith(('    ','- ')) and '\n' not in q[-1]: tail=q.pop()+'\n\n'+tail
            out.append('\n\n'.join(q).strip());cur=tail
        cur+=p+'\n\n'
    if cur.strip(): out.append(cur.strip())
    return [(title if i==0 else title+' (part %d)'%(i+1),c) for i,c in enumerate(out)]
G=[('abs-guide','x/abs-guide/usr/share/doc/abs-guide/**/*.html'),('bash-doc','x/bash-doc/**/bashref.html'),('bash-doc','x/bash-doc/**/*.html'),('debian-faq','x/debian-faq/**/*.html'),('debian-handbook','x/debian-handbook/usr/share/doc/debian-handbook/html/en-US/*.html'),('debian-policy','x/debian-policy/**/policy.html/*.html'),('debian-policy','x/debian-policy/**/*.html'),('debian-reference','x/debian-reference-en/**/*.html'),('developers-reference','x/developers-reference/**/*.html'),('diffutils-doc','x/diffutils-doc/**/*.html'),('git-doc','x/git-doc/usr/share/doc/git/html/*.html'),('maint-guide','x/maint-guide/**/*.html'),('postgresql-doc','x/postgresql-doc-15/**/*.html'),('python3.11-doc','x/python3.11-doc/usr/share/doc/python3.11/html/**/*.html'),
('linux-doc','x/linux-doc-6.1/**/html/admin-guide/**/*.html'),('linux-doc','x/linux-doc-6.1/**/html/filesystems/*.html'),('linux-doc','x/linux-doc-6.1/**/html/networking/*.html'),('linux-doc','x/linux-doc-6.1/**/html/process/*.html'),('linux-doc','x/linux-doc-6.1/**/html/userspace-api/**/*.html')]
BAD=re.compile(r'(genindex|search\.html|copyright|license|whatsnew/changelog|changelog|py-modindex|contents\.html|about\.html|bugs\.html|/release-|acknowledg|biblio|errcodes|collationTOC|features-sql|sql-keywords|index\.en|SubmittingPatches|/git-[a-z-]+\.html|/gitk\.html|authors|contrib|credits|bookindex|legalnotice|maintainers\.html|RelNotes|howto/update-hook|devices\.html)',re.I)
if __name__=='__main__':
    seen=set();out=[];tot={}
    for kind,g in G:
        for f in sorted(glob.glob(g,recursive=True)):
            if os.path.islink(f) or BAD.search(f) : continue
            rp=os.path.realpath(f)
            if rp in seen: continue
            seen.add(rp)
            if os.path.getsize(f)>3e6: continue
            try: title,s=conv(open(f,encoding='utf8',errors='replace').read())
            except Exception as e: print(f,e);continue
            if len(s)<400: continue
            if not title: title=os.path.basename(f)[:-5]
            for t,c in split_doc(title,s):
                if len(c)<250: continue
                out.append({'kind':'doc:'+kind,'title':t,'text':c}); tot[kind]=tot.get(kind,0)+len(c)
    print(len(out),tot,sum(tot.values()))
    json.dump(out,open('html.json','w'))

# SPDX-License-Identifier: Apache-2.0
import re,unicodedata
TR={0x201c:'"',0x201d:'"',0x201e:'"',0x201f:'"',0x2018:"'",0x2019:"'",0x201a:"'",0x2013:'-',0x2014:' - ',0x2015:' - ',0x2010:'-',0x2011:'-',0x2212:'-',0xa0:' ',0x2022:'*',0xb7:'*',0x2026:'...',0xad:None,0x200b:None,0xfeff:None,0x2009:' ',0x202f:' ',0x2003:' ',0x2002:' ',0xab:'"',0xbb:'"',0x2039:"'",0x203a:"'",0xfb01:'fi',0xfb02:'fl',0xfb00:'ff',0x2192:'->',0x2190:'<-',0x21d2:'=>',0xd7:'x',0xae:None,0x2122:None,0xa9:'(c)',0xb4:"'",0x2032:"'",0x2033:'"',0x25cf:'*',0x25e6:'*',0x2023:'*',0x2501:'-',0x2500:'-',0x2502:'|',0x27e8:'<',0x27e9:'>',0x2264:'<=',0x2265:'>=',0x2260:'!=',0xf0b7:'*',0x2217:'*',0x223c:'~',0x2044:'/'}
EMAIL=re.compile(r'<?\b[A-Za-z0-9._%+\-]+(?:@|\s?\[at\]\s?|\s?\(at\)\s?)[A-Za-z0-9\-]+(?:\.[A-Za-z0-9\-]+)*\.(?:com|org|net|edu|de|fr|uk|us|io|at|ch|jp|it|nl|se|no|fi|dk|pl|cz|au|ca|gov|mil|info|name|eu|be|es|ru|br|il|nz|in|cn|kr|za|hu|ie|pt|gr|tv|cc|me|xyz|dev|biz)\b>?')
def norm(t):
    t=re.sub(r'[ \t]*\u2014[ \t]*',' - ',t)
    t=t.translate(TR)
    t=re.sub(r"``([^`'\n]{1,80})''",r'"\1"',t)
    t=re.sub(r"`([^`'\n]{1,80})'",r"'\1'",t)
    t=re.sub(r'\s*<[\w./#:-]*\.html(?:#[\w-]+)?>','',t)
    t=t.replace('&apos;',"'").replace('&times;','x').replace('&quot;','"').replace('&nbsp;',' ')
    t=EMAIL.sub('<email>',t)
    t=re.sub(r'[\x00-\x08\x0b-\x1f\x7f]','',t)
    return t
# sentences crediting people
CRED=re.compile(r'\b([Ww]ritten|[Mm]aintained|[Cc]ontributed|[Dd]eveloped|[Cc]reated|[Aa]uthored|[Cc]oded|[Dd]esigned|[Pp]ackaged|[Pp]orted)\s+(?:\w+\s+){0,3}by\s+(?!the\b|a\b|an\b)(?:Dr\.? |Prof\.? )?[A-Z][a-z]+[ .]|[Cc]opyright|\(c\) (?:19|20)\d\d|\bAuthors?\s*:|\bMaintainers?\s*:|<email>|[Tt]hanks to [A-Z][a-z]+ [A-Z]|(?:manual|man) ?page was (?:originally )?(?:written|added|created|generated)|[Bb]ug reports? to|[Rr]eport bugs|[Hh]omepage: *$|All rights reserved|the package maintainer, [A-Z]')
SENT=re.compile(r'(?<=[.!?])\s+(?=[A-Z"\'(])')
def drop_credits(p):
    if not CRED.search(p): return p
    ss=SENT.split(p)
    return ' '.join(s for s in ss if not CRED.search(s))
NAMELINE=re.compile(r'^(?:[*\-] )?(?:[A-Z][a-z]+|[A-Z]\.)(?: (?:[A-Z][a-z]+|[A-Z]\.|van|von|de|der))* [A-Z][a-z]+(?: <email>)?[,.]?$')
def cut(t,n):
    if len(t)<=n: return t
    s=t[:n]
    i=max(s.rfind('. '),s.rfind('.\n'),s.rfind('? '),s.rfind('! '),s.rfind(':\n'))
    j=s.rfind('\n\n')
    k=s.rfind('\n')
    if i>n*0.5: return s[:i+1]
    if j>n*0.3: return s[:j]
    if k>n*0.3: return s[:k]
    if i>0: return s[:i+1]
    return ''

def joinwrap(t):
    ls=t.split('\n');o=[]
    for l in ls:
        if o and not l.startswith((' ','-','*')) and len(o[-1])>45 and not o[-1].startswith('    ') and not re.search(r'[.:;!?]$',o[-1]) and re.match(r'[a-z("]',l): o[-1]+=' '+l
        else: o.append(l)
    return '\n'.join(o)
BOX=re.compile(r'^\s*[\u2500-\u257f+|=-]{3,}[\s\u2500-\u257f+|=-]*$',re.M)

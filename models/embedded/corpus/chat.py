# SPDX-License-Identifier: Apache-2.0
import json,re,random,collections,sys
from common import *
from docs import body,btext,sp,POP
from tasks import TASKS
R=random.Random(20261129)
D=json.load(open('man.json'));P=json.load(open('pkg.json'));ALIAS=D['alias']
ALIAS.update({'awk':'gawk','python3':'python3.11','pip3':'pip','vi':'vim','nc':'nc_openbsd','telnet':'inetutils-telnet','sshd':'sshd'})
SYS=["You are a small offline helper for Debian packages and command-line tools.","You are a helpful assistant for Debian and the command line. Keep answers short.","You answer questions about Debian packages and command-line tools. If you do not know something, say so.","You are an offline command-line helper.","Help the user with Debian packages and shell commands.","You are a concise assistant. You know Debian packages and manual pages.","Answer briefly and honestly.","You are a Debian helper running without a network."]
VERBS=set('print list show display copy move remove delete create make change set get find search sort compare convert add report run execute edit update install start stop control manage concatenate output write read count format generate compress decompress extract expand check test query view manipulate join merge split cut translate determine return configure draw dump modify kill send capture trace rename link unlink mount unmount download upload transfer synchronize record play monitor measure calculate compute encode decode encrypt decrypt sign verify build compile link strip filter replace reverse number wrap fold shuffle truncate strip open close lock unlock enable disable wait sleep suspend delay load unload store save restore backup initialize init apply commit clone fetch push pull pick record reapply revert reset summarize switch stash inspect examine identify locate parse process turn rotate scale resize shrink enlarge map watch observe tell describe resolve look lookup estimate dump wipe discard provide produce perform use take give bring follow ignore include exclude treat match skip suppress force allow prevent specify select limit append prepend insert preserve keep do interpret assume quote escape limit abort exit enter log invoke connect disconnect bind listen scan probe attach detach migrate import export archive unpack pack repack prune clean clear erase fix repair tune adjust increase decrease'.split())
MAN={}
for m in D['man']:
    if m['sec'] in '1685' or m['sec']=='7':
        if m['name'] not in MAN or '1685 7'.find(m['sec'])<'1685 7'.find(MAN[m['name']]['sec']): MAN[m['name']]=m
CMD={k:v for k,v in MAN.items() if v['sec'] in '168'}
def clean(s): return sp(s).strip()
def lc(s):
    if not s: return s
    w=s.split(' ')[0]
    if len(w)>1 and any(c.isupper() for c in w[1:]): return s
    return s[0].lower()+s[1:]
def uc(s): return s[:1].upper()+s[1:] if s and re.match(r'[a-z]+\b(?![\-.(_/])',s) else s
def dot(s):
    s=s.strip(); return s if re.search(r'[.!?:]$',s) else s+'.'
def art(s):
    w=s.split(' ')[0].lower()
    if w in('a','an','the','this','some','your'): return lc(s)
    return None
def pick(*a): return R.choice(a)
# --- facts about commands
def desc_paras(m,n=400):
    out=[]
    for b in m.get('desc',[]):
        if b[0]!='p': 
            if out: break
            continue
        t=drop_credits(clean(b[1].replace('\n',' ')))
        if t.endswith(':') or len(t)<40: 
            if len(t)<40 and not out: continue
            break
        t=cut(t,n)
        if t and t[-1] in '.!?)': out.append(t)
    return out[:4]
FL=re.compile(r'^-{1,2}[A-Za-z0-9?@#+]')
def options(m):
    out=[]
    for b in m.get('opts',[])+m.get('desc',[]):
        if b[0]!='o' or not FL.match(b[1]) or len(b[1])>70 or '\n' in b[1]: continue
        bb=(b[2]+' '+body(b[3],2)).strip() if b[2] else body(b[3],2)
        bb=clean(bb.replace('\n',' '))
        if len(bb)<12 or bb.endswith(':') and len(bb)<60: continue
        bb=re.sub(r'^[-*:] +','',cut(bb,330))
        bb=re.sub(r'\s*(For example|e\.g\.|i\.e\.|as follows)[,:]?$','',bb)
        if not bb or bb.endswith(':'): 
            bb=re.sub(r'(?<=[.!?])\s[^.!?]*:$','',bb)
            if bb.endswith(':') or not bb: continue
        if bb.count('(')!=bb.count(')'): 
            if len(bb)>300: continue
        if re.search(r'[^.,;(/] --[\w-]+[=\[][^ ]*\.?$',bb): continue
        tag=clean(b[1]).rstrip(':')
        fl=[re.split(r'[ =\[<]',x.strip())[0] for x in re.split(r',\s*|\s\|\s',tag)]
        fl=[f for f in fl if f.startswith('-')]
        if fl: out.append((tag,fl,uc(dot(bb))))
    seen=set();o2=[]
    for t,f,b in out:
        if t in seen: continue
        seen.add(t);o2.append((t,f,b))
    return o2
CODEOK=re.compile(r'^(\$ |# |% |> )?([\w./+-]+)')
def examples(m):
    """(task text, code)"""
    nm=m['name'];base=re.split(r'[-]',nm)[0]
    out=[];E=m.get('ex',[])
    def okcode(c):
        ls=[re.sub(r'^(\$|#|%|>) ','',l) for l in c.split('\n')]
        ls=[l for l in ls if l.strip()]
        if not ls or len(ls)>5 or max(map(len,ls))>150: return None
        if not any(re.search(r'(^|[\s|;/`(])'+re.escape(x)+r'\b',ls[0]) for x in {nm,nm.replace('-',' ',1),base}): return None
        if re.search(r'[=]{4}|\.\.\.\.| \.\.\. |\\$',c): return None
        return '\n'.join(ls)
    # flatten
    items=[]
    for b in E:
        if b[0]=='o':
            items.append(('p',b[1])); 
            bl=b[3]
            if b[2]: items.append(('p',b[2]))
            if bl:
                ins=[x[0] for x in bl if x[1]]
                if ins:
                    mi=min(ins);cur=[]
                    for i,s in bl:
                        if not s: continue
                        if i>mi+1: items.append(('c',s))
                        else: items.append(('p',s))
        elif b[0] in 'pc': items.append((b[0],b[1]))
    for k in range(len(items)-1):
        (a,t),(b,u)=items[k],items[k+1]
        t=clean(t).lstrip('*- ').strip()
        if a=='p' and okcode(u) and not okcode(t) and 15<len(t)<190 and not (b=='p' and re.search(r'[.:]$',u)):
            out.append((t.rstrip(' :.'),okcode(u)))
        elif a=='p' and okcode(t) and re.match(r'^(\$ |# )?'+re.escape(nm.split('-')[0])+r'\b',t) and b=='p' and 12<len(u)<260 and not okcode(u) and u[0].isupper() and not re.search(r'\b(is|are|was)\b',t) and not re.search(r'[a-z]\.$',t):
            out.append((clean(cut(u,200)).rstrip(' :.'),okcode(t)))
    seen=set();o=[]
    for t,c in out:
        if c in seen or '<email>' in t or not t: continue
        seen.add(c);o.append((t,c))
    return o[:12]
def taskify(t):
    """turn 'To list x' / 'List x' / 'Lists x' into 'list x', else None"""
    t=re.sub(r'^(\d+[.)]|Example:?|EXAMPLE \d+:?)\s*','',t).strip()
    s=SENT.split(t)[0].rstrip('.:')
    m=re.match(r'^(?:[Tt]o |In order to |You can |How to )?([A-Za-z]+)\b(.*)$',s)
    if not m: return None
    v=m.group(1).lower();r=m.group(2)
    if v.endswith('s') and v[:-1] in VERBS: v=v[:-1]
    elif v.endswith('es') and v[:-2] in VERBS: v=v[:-2]
    elif v=='copies': v='copy'
    if re.match(r' (this|these) (flag|option|switch|command)|,? (will|is|are|was|should|must|may|to be|of)\b|-|:',r) or re.search(r'\bthis (option|flag)\b|:',r): return None
    if v not in VERBS or len(s)<14 or len(s)>130: return None
    r=re.sub(r',? (using|use|type|run|with|do|you (?:can|could|would) (?:use|run|type)|enter|try|issue)( the following)?( command)?$','',r)
    r=re.sub(r',? (as follows|like this|by doing|for example)$','',r)
    if r.count('(')!=r.count(')') or r.count('"')%2: return None
    return (v+r).strip().rstrip(',')
def summ(m):
    s=clean(m['summary']); return s
# ---- templates
WHAT=["What does {x} do?","what does {x} do","What is {x}?","what is {x}","what's {x}?","whats {x}","Explain {x}.","explain {x}","Tell me about {x}.","tell me about {x}","{x}?","{x}","Describe {x}.","describe {x} please","Can you explain {x}?","Can you tell me what {x} does?","I saw the command {x}. What is it for?","What is {x} used for?","what is {x} for?","What's {x} for?","Give me a short description of {x}.","Please explain what {x} does.","Could you describe {x}?","I don't know {x}. What does it do?","What can I do with {x}?","What can {x} do?","Why would I use {x}?","When should I use {x}?","What's the purpose of {x}?","what is the purpose of {x}","Help me understand {x}.","Info on {x}?","info about {x}","I want to know about {x}.","What does the {x} command do?","what does the command {x} do?","What is the {x} command?","Explain the {x} command.","Explain the command {x} to me.","Do you know {x}?","do you know what {x} is","Do you know the {x} tool?","What kind of tool is {x}?","What is the tool {x} good for?","Quick question: what does {x} do?","Hi, what does {x} do?","Hello, can you explain {x}?","hey what is {x}","One line about {x}, please.","In one sentence, what does {x} do?","Summarise {x}.","summarize {x}","Define {x}.","man {x}","whatis {x}","What does the manual say about {x}?","What does the man page of {x} say?","Tell me what {x} is for.","I came across {x} in a script. What does it do?","My script calls {x}. What is that?","Someone told me to use {x}. What is it?","what would I use {x} for?","What is {x} on Linux?","What is {x} in Debian?","Is {x} a command? What does it do?","Explain in short what {x} is.","So, {x}. What is that?","Describe the {x} tool in a few words.","what's the {x} command for","Tell me something about the {x} command."]
EV_WHAT=["Would you mind telling me what {x} is good at?","Any idea what {x} is meant for?","Give me the gist of {x}.","I keep hearing about {x}; what is it?","For a beginner, what does {x} do?","Please give a brief summary of {x}.","What job does {x} perform?","Let me know what {x} is about.","I forgot what {x} does, remind me.","What happens when I use {x}?","Brief me on {x}.","Could I get a short explanation of {x}?","What role does the program {x} have?","Say in a few words what {x} does."]
MORE=["Tell me more.","tell me more","More details please.","more","Can you tell me more?","Anything else?","What else?","Go on.","Please continue.","Could you go into more detail?","And more?","I'd like to know more.","Say more.","give me more details"]
EV_MORE=["Please expand on that.","Is there more to say about it?","Elaborate, please."]
SECQ=["What section is {x} in?","what section is {x} in","Which section does {x} belong to?","In which archive section is {x}?","Which Debian section is {x} in?","section of {x}?","Tell me the section of {x}.","What is the section of the package {x}?"]
HOMEQ=["Give me the homepage of {x}.","What is the homepage of {x}?","homepage of {x}","Where is the website of {x}?","What's the website of {x}?","Do you have a link for {x}?","Where can I find {x} on the web?","URL of {x}?"]
INSTQ=["How do I install {x}?","how to install {x}","how can I install {x}","install {x}","How do I get {x} on Debian?","What is the command to install {x}?","I want to install {x}.","How would I install the package {x}?"]
SECP=["What section is it in?","Which section is it in?","And the section?","section?"]
HOMEP=["What is its homepage?","And the homepage?","homepage?","Does it have a website?","Where is its website?"]
INSTP=["How do I install it?","how do I install it","And how do I install it?","Install it how?"]
OPTQ=["What does {x} {o} do?","what does {x} {o} do","What does the {o} option of {x} do?","what does {o} mean in {x}?","What is the option {o} of {x} for?","{x} {o}?","{x} {o}","Explain {x} {o}.","explain the {o} flag of {x}","What is {o} in {x}?","In {x}, what does {o} do?","What does {o} do in {x}?","meaning of {x} {o}","What happens with {x} {o}?","Tell me about the {o} option of {x}.","Why use {o} with {x}?"]
EV_OPTQ=["Which effect has {o} on {x}?","I saw {x} called with {o}. What is that switch?","For {x}, describe the switch {o}."]
HOWQ=["How do I {t} with {x}?","how do i {t} with {x}","How can I {t} using {x}?","how to {t} with {x}","What option makes {x} {t}?","Which option of {x} lets me {t}?","With {x}, how do I {t}?","In {x}, how can I {t}?","I want to {t} with {x}.","Is there a way to {t} with {x}?","Can {x} {t}?","How would I {t} in {x}?"]
TASKQ=["How do I {t}?","how do i {t}","How can I {t}?","how to {t}","how to {t}?","How would I {t}?","What is the command to {t}?","command to {t}","Which command can {t}?","What command would {t}?","I want to {t}.","I need to {t}.","I'd like to {t}. What do I type?","Show me how to {t}.","Tell me how to {t}.","Give me a command to {t}.","What do I type to {t}?","Please help me {t}.","Can you show me how to {t}?","Is there a command to {t}?","How do you {t}?","How do I {t} on the command line?","How do I {t} in the shell?","how can I {t} in Debian?","One-liner to {t}?","Quick: how do I {t}?","Hi, how do I {t}?","How do I {t} with {x}?","how to {t} with {x}","How can I use {x} to {t}?","Use {x} to {t}.","With {x}, how do I {t}?","What {x} command would {t}?","I want to {t} with {x}."]
EV_TASKQ=["What should I enter to {t}?","Suggest a way to {t}.","My goal is to {t}. Any hint?","Which {x} call will {t}?","Could you give me the shell command to {t}?","Remind me how to {t}."]
EXQ=["Give me an example of {x}.","Show me an example of {x}.","example for {x}","{x} example","How is {x} used?","How do I use {x}?","how to use {x}","Show me how to use {x}.","Can I see an example of {x}?","An example, please: {x}.","usage of {x}","What does a typical {x} command look like?"]
EXP=["Give me an example.","Show me an example.","example?","How do I use it?","How is it used?","Can you show an example?"]
SYNQ=["What is the syntax of {x}?","syntax of {x}","What is the synopsis of {x}?","How do I call {x}?","How is {x} called?","What arguments does {x} take?","{x} syntax","Show me the synopsis of {x}.","{x} usage?"]
PROVQ=["Which package provides {x}?","What package contains the command {x}?","which package has {x}","Which package do I need for {x}?","Where does the command {x} come from?","I get 'command not found' for {x}. What should I install?","{x}: command not found","bash: {x}: command not found","Which Debian package ships {x}?"]
MANSECQ=["Which manual section is {x} in?","What section of the manual is {x} in?","Which man section has {x}?"]
MANSEC={'1':'user commands','8':'system administration commands','6':'games','5':'file formats','7':'overviews and conventions'}
THX=["Thanks!","thanks","Thank you.","Thank you very much!","thx","Great, thanks.","Perfect, thank you.","ok thanks","That helps, thanks.","Cheers!","Nice, thanks!","Got it, thank you."]
THXA=["You're welcome.","You're welcome!","Glad to help.","Any time.","No problem. Ask again if you need another command or package.","Happy to help."]
HELLO=["Hello","hello","Hi","hi","hi!","Hey","hey there","Good morning","Good evening","Hello!","Hello there","hi there","Hey!","Good day","hello, anyone there?","yo","Greetings"]
HELLOA=["Hello! Ask me about a command or a Debian package.","Hi! What command or package would you like to know about?","Hello. How can I help you with the command line today?","Hi there! I can tell you about commands and Debian packages."]
WHO=["Who are you?","who are you","What are you?","what are you","What is your name?","Are you a human?","Are you an AI?","Are you a robot?","Tell me about yourself.","Introduce yourself.","Who am I talking to?","what can you do","What can you do?","What can I ask you?","How can you help me?","What do you know?","help","Help!","What is this?","What are you for?"]
WHOA=["I am a small offline helper for Debian packages and command-line tools.","I am a small offline helper for Debian packages and command-line tools. Ask me what a command does, or which package to install.","I am a small offline helper for Debian packages and command-line tools. I can describe commands, options and packages."]
WHOAI=["I am a small language model: an offline helper for Debian packages and command-line tools.","I am not a human. I am a small offline helper for Debian packages and command-line tools."]
BYE=["Bye","bye","Goodbye","See you","That's all.","that is all, bye","Good night","I have to go."];BYEA=["Goodbye!","Bye! Come back any time.","See you!","Goodbye, and happy hacking."]
HOWRU=["How are you?","how are you","How is it going?","how are you today?","What's up?","you ok?"];HOWRUA=["I am doing fine, thanks. What command or package can I help with?","Fine, thank you. How can I help you?","All good here. What would you like to know?"]
MISC=[("Are you online?","No. I work offline and only know what I learned from Debian packages and manual pages."),("Do you have internet access?","No, I work offline."),("Can you browse the web?","No. I work offline, so I can't look anything up."),("Can you run commands for me?","No, I can only describe commands. You have to run them yourself."),("Can you install packages for me?","No, but I can tell you the command: apt install followed by the package name."),("Are you always right?","No. I am a small model and can make mistakes. Check the manual page before running anything important."),("Can I trust you?","I try to be accurate, but I can make mistakes. Check with the manual page to be sure."),("Where does your knowledge come from?","From the descriptions of Debian packages and from manual pages."),("What did you learn from?","From Debian package descriptions, manual pages and free documentation."),("Which Debian release do you know?","I learned from Debian 12, also called bookworm."),("Do you know Debian?","Yes, I know many packages of Debian 12 (bookworm)."),("How do I read a manual page?","Type man followed by the name, for example: man grep"),("How do I leave the manual page?","Press q to quit the pager."),("How do I find a manual page?","Use man -k followed by a word, for example: man -k archive"),("Do you speak German?","I only know English."),("Can you speak French?","I only know English."),("ok","Let me know if you have another question."),("OK.","Let me know if you have another question."),("yes","All right. What would you like to know?"),("no","All right. Ask me about a command or a package whenever you like."),("I have a question.","Sure, go ahead."),("Can I ask you something?","Of course. What would you like to know?"),("You are wrong.","Sorry about that. I can make mistakes; please check the manual page."),("That is wrong.","Sorry about that. I can make mistakes; please check the manual page."),("I don't understand.","Sorry. Tell me which command or package you mean and I will try again."),("Nice work!","Thank you!"),("You are great.","Thank you! What else would you like to know?"),("lol","Happy to hear that. What command can I explain?"),("test","I am here. Ask me about a command or a package."),("Sorry","No problem."),]
OOS=["What's the weather like?","Who won the football match?","Write me a poem.","What is the capital of France?","Tell me a joke.","How old are you?","What time is it?","Who is the president?","Can you cook?","What should I eat today?","Translate this into Spanish.","Do my homework.","What is the meaning of life?","How do I lose weight?","Which stock should I buy?","What is 12345 times 6789?","Play some music.","Call my mother.","Book a flight to Rome.","Who painted the Mona Lisa?","What is love?","How far away is the moon?","Write an essay about history.","Give me medical advice.","Recommend a movie.","What is the best car?","Is it going to rain tomorrow?","Sing a song.","What do you think about politics?","How tall is Mount Everest?","What's the news today?","Who wrote Hamlet?","How do I fix my bike?","Give me a recipe for bread.","what's your favourite colour?","Do you dream?","Will I get rich?","How do I learn to swim?","Tell me a story.","What is the population of Japan?"]
OOSA=["I don't know. I can only help with Debian packages and command-line tools.","Sorry, that is outside what I know. I can help with commands and Debian packages.","I can't help with that. Ask me about a command or a Debian package.","I only know about Debian packages and command-line tools, so I can't answer that."]
UNKA=["I don't know a package or command called {x}.","I don't know a package or command called {x}. Check the spelling, or try: apt search {x}","Sorry, I don't know a package or command called {x}.","I don't know a package or command called {x}. You could try apt search or man -k."]
def syl():
    return ''.join(R.choice('bcdfghjklmnprstvwz')+R.choice(['a','e','i','o','u','oo','ai','y'])+R.choice(['','','n','r','x','l','q','zz','m']) for _ in range(R.choice([2,2,3])))
KNOWN={x.lower() for x in P}|{x.lower() for x in MAN}|{x.lower() for x in ALIAS}
def fake():
    while 1:
        s=syl(); 
        k=R.random()
        if k<.15: s+=R.choice(['-tools','ctl','-utils','d','fs','2','-cli','mk'])
        elif k<.22: s='lib'+s
        elif k<.3: s=R.choice(list(POPN))+R.choice(['x','oo','zle','ify','pq'])
        elif k<.35: s=s.capitalize()
        if s.lower() not in KNOWN and len(s)>3: return s
# popular names
POPN=[c for c in "awk ls cp mv rm cat grep sed gawk mawk tar find git ssh scp sftp ssh-keygen ssh-add rsync curl wget apt apt-get apt-cache apt-mark apt-file dpkg dpkg-query dpkg-deb systemctl journalctl make gcc python3.11 perl bash dash zsh less vim nano tmux screen top htop ps kill pkill pgrep du df mount umount ip ss ping nmap tcpdump iptables nft crontab at ffmpeg jq yq docker podman gdb strace ltrace cmake ctest ninja meson sqlite3 psql pg_dump mysql mariadb nginx apache2 gpg openssl zip unzip gzip gunzip xz bzip2 zstd lz4 7z tree file xargs sort uniq cut tr head tail wc diff diff3 patch cmp comm join paste chmod chown chgrp ln touch mkdir rmdir useradd usermod userdel groupadd adduser passwd su sudo visudo hostnamectl timedatectl loginctl lsblk blkid fdisk parted lsof netstat ifconfig route traceroute dig host nslookup whois telnet nc socat date cal bc dc man apropos whatis whereis which locate plocate watch tee dd sha256sum md5sum sha1sum b2sum base64 base32 split csplit seq env printf echo test yes nohup nice renice time timeout uname uptime free vmstat iostat dmesg lspci lsusb lscpu lsmod modprobe insmod rmmod rg fdfind batcat fzf pip npm ruby php mutt latex qpdf pdftotext pdftoppm exiftool tac rev nl fold fmt pr expand unexpand column od hexdump strings nm objdump readelf ar ld as addr2line strip ldd id who w whoami groups last users logname tty stty reset clear script screen basename dirname realpath readlink pwd stat truncate shred mktemp mkfifo mknod sync install nproc sleep factor numfmt shuf tsort sum cksum expr pathchk printenv stdbuf chroot hostid unlink link true false dir vdir dircolors mkswap swapon swapoff fsck e2fsck mke2fs mkfs resize2fs tune2fs wipefs losetup findmnt fallocate flock ionice taskset chrt nsenter unshare setsid logger rename ed ex m4 autoconf automake libtool pkg-config bison flex cpp g++ clang gprof ccache shellcheck indent ctags cscope valgrind perf cppcheck svn hg cvs tig git-lfs quilt debuild dch dpkg-buildpackage debootstrap aptitude lintian convert identify mogrify sox lame flac mpv mplayer lynx w3m links elinks irssi aria2c lftp rclone borg restic parallel pv entr ack ncdu mc ranger nnn newsboat pandoc man-db mandb groff troff nroff enscript gs pdflatex tex dot gnuplot units figlet cowsay fortune sl age pass ufw fail2ban-client certbot mtr iftop nethogs iotop glances stress sysbench iperf3 fio hdparm smartctl mdadm lvm lvcreate vgcreate pvcreate cryptsetup btrfs xfs_repair ntpdate chronyc logrotate rsyslogd auditctl getfacl setfacl chattr lsattr getent ldconfig locale localedef update-alternatives update-rc.d dpkg-reconfigure debconf sysctl udevadm systemd-analyze systemd-run resolvectl busctl machinectl nmcli wpa_supplicant iw ethtool bridge tc wg openvpn dnsmasq dhclient qemu-img virsh lxc-create buildah skopeo git-commit git-log git-status git-diff git-add git-branch git-checkout git-switch git-merge git-rebase git-clone git-push git-pull git-fetch git-stash git-tag git-reset git-revert git-show git-init git-remote git-bisect git-blame git-cherry-pick git-clean git-config git-restore git-rm git-mv git-grep git-worktree git-submodule".split() if c in CMD or c in P or c in ALIAS]
seenp=set();POPN=[c for c in POPN if not (c in seenp or seenp.add(c))]
OVER={'python3.11':'python3'}
def resolve(c):
    if c in CMD: return CMD[c]
    a=ALIAS.get(c)
    if a in CMD: return CMD[a]
    return None
def shown(m,c=None):
    n=c or m['name']; n=OVER.get(n,n)
    if n.startswith('git-') and n not in P and m['pkg'] in('git','git-man'): return 'git '+n[4:]
    return n
OUT=[];EV=[]
def sysm(): return [{'role':'system','content':R.choice(SYS)}] if R.random()<.35 else []
def noise(u):
    r=R.random()
    if r<.08: u=u[0].lower()+u[1:] if len(u)>1 and u[1].islower() else u
    elif r<.13: u=u.rstrip('?.')
    elif r<.16 and u.endswith('?'): u=u[:-1]+', please?'
    elif r<.18: u='Hi. '+u
    return u
def conv(turns,ev=False):
    ms=sysm()
    for u,a in turns:
        ms.append({'role':'user','content':u if ev else noise(u)});ms.append({'role':'assistant','content':a.strip()})
    (EV if ev else OUT).append({'messages':ms})
def a_what(x,m,short=None):
    s=summ(m);d=desc_paras(m,360);first=''
    if d:
        first=d[0]
    v=s.split(' ')[0].lower().strip(',')
    isv=v in VERBS and not re.match(r'^\w+ (is|of|for)\b',s)
    c=[]
    if isv: c+=['%s is used to %s.'%(x,lc(s)),'Use %s to %s.'%(x,lc(s)),'%s can %s.'%(x,lc(s))] if ' - ' not in s else []
    elif art(s): c+=['%s is %s.'%(x,art(s))]
    c+=['%s: %s.'%(x,s),'%s - %s.'%(x,s)]
    if not isv: c+=['The manual page describes %s as: %s.'%(x,s)]
    a=R.choice(c)
    if short is None: short=R.random()<.45
    if not short and first and first.lower().rstrip('.')!=s.lower(): a+=' '+(first if first.split(' ')[0]==m['name'] else uc(first))
    return a
def a_more(m,k,x):
    d=desc_paras(m,420)
    return d[k] if k<len(d) else None
NOMORE=["That is all I know about {x}. See man {x} for the full manual.","I don't know more about {x}. The manual page has the details: man {x}","That's all I have on {x}."]
def syn_ok(m):
    nm=m['name']; L=[clean(s) for s in m.get('syn',[])]
    L=[s for s in L if re.match(re.escape(nm.replace('-',' ',1) if nm.startswith('git-') else nm)+r'\b',s) and len(s)<220]
    return L[:3]
def inst(p): return R.choice(['apt install %s','Run: apt install %s','Install it with: apt install %s','Use apt install %s','You can install it with apt install %s'])%p
def command_turns(m,x,ev=False,full=False):
    w=EV_WHAT if ev else WHAT
    T=[(R.choice(w).format(x=x),a_what(x,m))]
    return T
def follow(m,x,k=0,ev=False,used=''):
    r=R.random()
    if r<.4:
        d=[q for q in desc_paras(m,420) if uc(q) not in used and q not in used]
        return (R.choice(EV_MORE if ev else MORE), (d[0] if d[0].split(' ')[0]==m['name'] else uc(d[0])) if d else R.choice(NOMORE).format(x=x))
    if r<.55:
        s=syn_ok(m)
        if s: return (R.choice(["What is its syntax?","How do I call it?","And the syntax?","syntax?"]) ,pick('%s','The synopsis is: %s','Synopsis: %s')%('\n'.join(s[:2])))
    if r<.7:
        e=examples(m)
        if e:
            t,c=R.choice(e); return (R.choice(EXP),'%s:\n%s'%(uc(t),c))
    if r<.85:
        o=options(m)
        if o:
            t,f,b=R.choice(o[:40]); return (R.choice(["What does {o} do?","And {o}?","What about {o}?","what does the option {o} do"]).format(o=f[0]),R.choice(['%s: %s','The option %s: %s'])%(t,b))
    return (R.choice(["Which package is it in?","Which package has it?","What package is that from?"]),R.choice(['It is in the package %s.','The package %s.','%s is in the Debian package %s.'.replace('%s',x,1)])%m['pkg'])
def opt_pair(x,o,ev=False):
    t,f,b=o
    q=R.choice(EV_OPTQ if ev else OPTQ).format(x=x,o=R.choice(f))
    a=R.choice(['%s: %s','%s %s: %s','With %s, %s: %s'])
    n=a.count('%s')
    if n==2: a=a%(t,b)
    elif a.startswith('With'): a='In %s, %s: %s'%(x,t,b)
    else: a='%s %s: %s'%(x,t,b)
    return q,a
def how_pair(x,o,ev=False):
    t,f,b=o
    k=taskify(b)
    if not k or len(k)>100 or re.search(r'\b(this option|see|above|below)\b',k): return None
    q=R.choice(HOWQ).format(t=k,x=x)
    fl=f[0]; 
    tt=re.split(r',\s*',t); 
    a=R.choice(['Use the option %s.'%t,'Use %s with %s.'%(x,t),'With the option %s: %s'%(t,b),'%s %s'%(x,f[0])+ (' (also written %s)'%f[1] if len(f)>1 else '')+'.', 'Try %s: %s'%(t,b)])
    return q,a
def closing(T):
    if R.random()<.12: T.append((R.choice(THX),R.choice(THXA)))
    return T
STAT=collections.Counter()
# 1. popular
taskby=collections.defaultdict(list)
for c,t,o in TASKS: taskby[c].append((t,o))
def man_has(c,o):
    m=resolve(c); 
    if not m: return False
    blob=json.dumps([m.get('syn'),m.get('desc'),m.get('opts'),m.get('ex')])
    if c=='git':
        g=re.match(r'git (\S+)',o); mm=CMD.get('git-'+g.group(1)); 
        if mm: blob=json.dumps([mm.get('syn'),mm.get('desc'),mm.get('opts'),mm.get('ex')])
        else: return False
    toks=[w for w in o.split('|')[0 if c not in('uniq','xargs','tee','pv') else -1].split() if re.match(r'^-{1,2}[a-zA-Z]',w)]
    for w in toks:
        w=w.split('=')[0]
        if w.startswith('--') or w in blob: 
            if w not in blob: return False
        else:
            for ch in re.sub(r'\d+$','',w[1:]):
                if '-'+ch not in blob and '['+ch not in blob and c!='tar': return False
    return True
def main():
    bad=[];good=[]
    from docs import D as _d
    for c,t,o in TASKS:
        (good if man_has(c,o) else bad).append((c,t,o))
    print('tasks',len(good),'unverified dropped',[(c,o) for c,t,o in bad])
    def task_answer(x,t,o):
        return R.choice(['%s'%o,'Use: %s'%o,'Run: %s'%o,'You can %s with: %s'%(t,o) if not re.search(r'\b(my|I)\b',t) else o,'Use %s: %s'%(x,o),'Try this: %s'%o,'```\n%s\n```'%o])
    for c,t,o in good:
        x=OVER.get(c,c); x='awk' if c=='gawk' else x
        o=o.replace('\\\\','\\')
        qs=R.sample(TASKQ,len(TASKQ))[:30]
        if re.match(r'be |see |keep |leave |pass |\w+ (what|how|which|who)\b',t) or re.search(r'\b(my|I)\b',t): qs=[q for q in qs if not re.search(r'(command|can|would|{x}) \{t\}|command to|[Oo]ne-liner|^Use',q)]+R.sample(TASKQ[:6],6)
        for q in qs:
            T=[(q.format(t=t,x=x),task_answer(x,t,o))]
            if R.random()<.15:
                m=resolve(c); u,a=follow(m,x,used=''); 
                T.append(("What is "+x+"?",a_what(x,m)))
            conv(closing(T));STAT['task']+=1
    for i in range(3):
        for c,t,o in R.sample(good,40):
            x=OVER.get(c,c); x='awk' if c=='gawk' else x
            conv([(R.choice([q for q in EV_TASKQ if not q.startswith('Which') or not t.startswith(('be ','see '))]).format(t=t,x=x),task_answer(x,t,o.replace('\\\\','\\')))],True)
    npop=0
    for c in POPN:
        m=resolve(c)
        if not m: continue
        npop+=1
        x=shown(m,c)
        if c in('gawk','mawk') and R.random()<0: x='awk'
        top=npop<=150
        for q in R.sample(WHAT,len(WHAT) if top else 40):
            if x.startswith('git ') and q=='{x}': continue
            T=[(q.format(x=x),a_what(x,m))]
            while R.random()<.35 and len(T)<4: T.append(follow(m,x,used=' '.join(a for _,a in T)))
            conv(closing(T));STAT['pop_what']+=1
        O=options(m)
        for o in O[:70 if top else 30]:
            for _ in range(3 if top else 2):
                T=[opt_pair(x,o)]
                if R.random()<.2: T.append(opt_pair(x,R.choice(O)))
                conv(closing(T));STAT['pop_opt']+=1
            for _ in range(2):
                h=how_pair(x,o)
                if h: conv(closing([h]));STAT['pop_how']+=1
        E=examples(m)
        for t,cd in E:
            k=taskify(t)
            for _ in range(4):
                if k and R.random()<.7: conv(closing([(R.choice(TASKQ[-7:]+HOWQ[:4]).format(t=k,x=x),R.choice(['%s','Use: %s','Run: %s','```\n%s\n```','For example:\n%s'])%cd)]))
                else: conv(closing([(R.choice(EXQ).format(x=x),R.choice(['%s:\n%s','%s:\n```\n%s\n```','An example. %s:\n%s'])%(uc(t),cd))]))
                STAT['pop_ex']+=1
        s=syn_ok(m)
        if s:
            for q in R.sample(SYNQ,5): conv(closing([(q.format(x=x),R.choice(['%s','Synopsis: %s','The synopsis of '+x+' is: %s','```\n%s\n```'])%'\n'.join(s))]));STAT['pop_syn']+=1
        if not x.startswith('git '):
            for q in R.sample(PROVQ,5): conv(closing([(q.format(x=x),R.choice(['%s is in the package %s.'%(x,m['pkg']),'The package %s.'%m['pkg'],'Install the package %s: apt install %s'%(m['pkg'],m['pkg']),'The command %s comes from the package %s.'%(x,m['pkg'])]))]));STAT['pop_prov']+=1
            q=R.choice(MANSECQ);conv([(q.format(x=x),'%s is in section %s of the manual: %s.'%(x,m['sec'],MANSEC[m['sec']]))])
        # eval
    pops=[c for c in POPN if resolve(c)]
    while len(EV)<440:
        c=R.choice(pops[:200]);m=resolve(c);x=shown(m,c)
        r=R.random()
        if r<.6:
            T=[(R.choice(EV_WHAT).format(x=x),a_what(x,m))]
            if R.random()<.35:
                d=[q for q in desc_paras(m,420) if uc(q) not in T[0][1] and q not in T[0][1]]
                if d: T.append((R.choice(EV_MORE),uc(d[0])))
            conv(T,True)
        else:
            O=options(m)
            if O: conv([opt_pair(x,R.choice(O[:70]),True)],True)
    # 2. all other commands
    popset={resolve(c)['name'] for c in pops}
    for n,m in CMD.items():
        if n in popset: continue
        x=shown(m)
        for q in R.sample(WHAT,4):
            T=[(q.format(x=x),a_what(x,m))]
            while R.random()<.4 and len(T)<4: T.append(follow(m,x,used=' '.join(a for _,a in T)))
            conv(closing(T));STAT['cmd_what']+=1
        O=options(m)
        for o in R.sample(O,min(6,len(O))):
            conv(closing([opt_pair(x,o)]));STAT['cmd_opt']+=1
            h=how_pair(x,o)
            if h and R.random()<.6: conv(closing([h]));STAT['cmd_how']+=1
        for t,cd in examples(m)[:6]:
            k=taskify(t)
            if k: conv(closing([(R.choice(TASKQ[-7:]+HOWQ[:4]).format(t=k,x=x),R.choice(['%s','Use: %s','```\n%s\n```','For example:\n%s'])%cd)]))
            else: conv(closing([(R.choice(EXQ).format(x=x),'%s:\n%s'%(uc(t),cd))]))
            STAT['cmd_ex']+=1
        s=syn_ok(m)
        if s and R.random()<.5: conv([(R.choice(SYNQ).format(x=x),'\n'.join(s))]);STAT['cmd_syn']+=1
        if R.random()<.6: conv([(R.choice(PROVQ).format(x=x),R.choice(['%s is in the package %s.'%(x,m['pkg']),'The command %s comes from the package %s.'%(x,m['pkg']),'Install the package %s: apt install %s'%(m['pkg'],m['pkg'])]))]);STAT['cmd_prov']+=1
    for n,m in MAN.items():
        if n in CMD: continue
        for q in R.sample(["What is {x}?","what is {x}","Tell me about {x}.","What does {x} contain?" if m['sec']=='5' else "What does the manual page {x} cover?","Explain {x}.","What is the file {x} for?" if m['sec']=='5' else "What is {x} about?"],3):
            T=[(q.format(x=n),a_what(n,m))]
            if R.random()<.3: T.append(follow(m,n,used=T[0][1]))
            conv(T);STAT['man57']+=1
    # 3. packages
    REP=collections.Counter()
    for p in P.values():
        for q in p['paras']: REP[q]+=1
    def pparas(p): return [x for x in (cut(q,480) for q in p['paras'] if REP[q]<8) if len(x)>30 and not x.startswith(('- ','1. ','1) ')) and (x[-1] in '.!)' or '\n- ' in x) and not x.endswith(':')]
    PWHAT=[q for q in WHAT if 'command' not in q and 'man ' not in q and 'manual' not in q and 'whatis' not in q and 'script' not in q]+["What is the package {x}?","What is the Debian package {x}?","what is in the package {x}?","What does the package {x} contain?","Describe the package {x}.","apt show {x}","What is the {x} package for?","Tell me about the package {x}.","Should I install {x}?","package {x}"]
    SECD={'utils':'utilities','net':'network tools','admin':'system administration','libs':'libraries','libdevel':'development libraries','doc':'documentation','devel':'development tools','web':'web software','httpd':'web servers','editors':'editors','text':'text processing','games':'games','sound':'sound','video':'video','graphics':'graphics','mail':'mail','science':'science','math':'mathematics','python':'Python','perl':'Perl','ruby':'Ruby','java':'Java','rust':'Rust','golang':'Go','haskell':'Haskell','javascript':'JavaScript','php':'PHP','gnu-r':'R','fonts':'fonts','vcs':'version control','shells':'shells','database':'databases','kde':'KDE','gnome':'GNOME','xfce':'Xfce','x11':'X11','hamradio':'amateur radio','electronics':'electronics','comm':'communication','embedded':'embedded systems','news':'news','interpreters':'interpreters','tex':'TeX','lisp':'Lisp','ocaml':'OCaml','education':'education','kernel':'the kernel'}
    def a_pkg(p,short=None):
        n=p['n'];s=p['short'];a=art(s)
        c=['%s: %s.'%(n,s),'%s is a Debian package: %s.'%(n,s),'The package %s is described as: %s.'%(n,s),'%s - %s.'%(n,s)]
        if a: c=['%s is %s.'%(n,a)]+c[:2]
        r=R.choice(c); ps=pparas(p)
        if short is None: short=R.random()<.35
        if ps and not short: r+=('\n' if '\n' in ps[0] else ' ')+ps[0]
        return r
    def p_follow(p,used):
        n=p['n'];r=R.random();ps=pparas(p)
        if r<.4:
            d=[q for q in ps if q not in used]
            return (R.choice(MORE),d[0] if d else R.choice(["That is all I know about {x}.","I don't know more about {x}.","That's all the description says. Try: apt show {x}"]).format(x=n))
        if r<.6: return (R.choice(SECP),a_sec(p))
        if r<.8: return (R.choice(HOMEP),a_home(p))
        return (R.choice(INSTP),inst(n))
    def a_sec(p):
        s=p['sec'];n=p['n'];d=SECD.get(s)
        return R.choice(['%s is in section %s.'%(n,s),'It is in the section %s.'%s,'Section %s.'%s,'%s belongs to the section %s%s.'%(n,s,' ('+d+')' if d and d.lower()!=s else '')])
    def a_home(p):
        n=p['n'];h=p['home']
        if not h: return R.choice(['I don\'t know a homepage for %s.'%n,'No homepage is listed for %s.'%n])
        return R.choice(['%s'%h,'The homepage of %s is %s'%(n,h),'Its homepage is %s'%h,'You can find it at %s'%h])
    INT={'utils','net','admin','web','httpd','editors','text','games','sound','video','graphics','mail','science','math','vcs','shells','database','x11','comm','electronics','hamradio','education','news','interpreters','gnome','kde','xfce','misc','devel','embedded','otherosfs','tex'}
    AUX=re.compile(r'(-dbg|-dbgsym|-dev|-doc|-data|-common|-locales?|-l10n.*|-perl|-examples)$|^(lib|fonts-|golang-|librust-|ghc|r-cran|node-|ruby-|python3-|php-|linux-(image|headers|modules))|-l10n-|-i18n-|transitional|dummy')
    names=sorted(P)
    for n in names:
        p=P[n]
        if not p['short'] or re.search(r'(?i)transitional|dummy package|empty package',p['short']): 
            if re.search(r'(?i)transitional|dummy',p['short']) and R.random()<.15: conv([(R.choice(PWHAT).format(x=n),'%s is a transitional package. It is described as: %s.'%(n,p['short']))])
            continue
        prime=p['sec'] in INT and not AUX.search(n)
        reps=3 if prime else (1 if R.random()<.72 else 0)
        for q in R.sample(PWHAT,reps):
            T=[(q.format(x=n),a_pkg(p))]
            while R.random()<(.4 if prime else .25) and len(T)<4:
                f=p_follow(p,' '.join(a for _,a in T))
                if f[0] not in [u for u,_ in T] and (f[0] in MORE or not any(u in G and f[0] in G for u,_ in T for G in (SECP,HOMEP,INSTP))) and (not f[1].startswith(('That','I don')) or len(T)<3) : T.append(f)
                else: break
            conv(closing(T));STAT['pkg_what']+=1
        if prime or R.random()<.08:
            r=R.random()
            if r<.35: T=[(R.choice(SECQ).format(x=n),a_sec(p))]
            elif r<.7: T=[(R.choice(HOMEQ).format(x=n),a_home(p))]
            elif r<.9: T=[(R.choice(INSTQ).format(x=n),inst(n))]
            else:
                o=R.choice(['utils','net','games','libs',p['sec']]); T=[('Is %s in section %s?'%(n,o),('Yes, %s is in section %s.'%(n,o)) if o==p['sec'] else 'No, %s is in section %s.'%(n,p['sec']))]
            if R.random()<.2: T.append((R.choice(["What is {x}?","And what is {x}?","What does it do?"]).format(x=n),a_pkg(p)))
            conv(closing(T));STAT['pkg_fact']+=1
    # 4. reverse look-up
    SH=collections.defaultdict(list)
    for n in names:
        p=P[n]
        if p['sec'] in INT and not AUX.search(n) and 12<len(p['short'])<75 and not re.search(r'(?i)transitional|dummy|metapackage|meta-package|plugin for|\bfiles\b|module|debug|\(',p['short']) and n.lower() not in p['short'].lower(): SH[re.sub(r'^(an?|the) ','',p['short'],flags=re.I)].append(n)
    RQ=["Which package is a {s}?","Which package gives me a {s}?","I need a {s}.","I'm looking for a {s}.","Is there a {s} in Debian?","What can I install as a {s}?","Recommend a {s}.","Do you know a {s}?","suggest a {s}","Which package should I install for a {s}?","Find me a {s}.","Name a {s}."]
    NOUN=re.compile(r'\b(client|server|editor|viewer|player|tool|utility|manager|browser|game|program|daemon|interface|generator|converter|compiler|emulator|simulator|calculator|monitor|analyzer|analyser|shell|terminal|debugger|library|framework|application|system|environment|parser|filter|reader|downloader|scanner|checker|driver|proxy|engine|toolkit|interpreter|assembler|clone|recorder|organizer|tracker|wrapper|launcher|frontend|front-end|backend|suite|package|formatter|logger|sniffer|sequencer|synthesizer|mixer|backup|database|wiki|forum|calendar|clock|dictionary|translator|implementation|solver|explorer|indexer|archiver|compressor|cracker|multiplexer|pager|applet|panel|dock|screensaver|puzzle)$')
    for s,ns in SH.items():
        t=lc(s)
        head=re.split(r' (?:for|with|that|which|to|in|using|written|based|of|from|and|on|supporting|designed|like|,)\b',t)[0]
        if not NOUN.search(head.rstrip(',')): continue
        an='an' if re.match(r'[aeiou]',t) and not re.match(r'(uni|use|us[ei]|eu|one)',t) else 'a'
        for q in R.sample(RQ,2):
            q=q.replace(' a {s}',' %s {s}'%an)
            if len(ns)==1: a=R.choice(['%s: %s.'%(ns[0],s),'Try %s: %s.'%(ns[0],s),'The package %s.'%ns[0],'%s is described as: %s.'%(ns[0],s)])
            else: a='There are several: '+', '.join(ns[:5])+'.'
            T=[(q.format(s=t),a)]
            if len(ns)==1 and R.random()<.4: T.append(p_follow(P[ns[0]],a))
            conv(closing(T));STAT['reverse']+=1
    CATS="web server|text editor|web browser|mail client|email client|mail server|IRC client|image viewer|PDF viewer|music player|media player|video player|file manager|window manager|terminal emulator|password manager|RSS reader|FTP client|FTP server|BitTorrent client|proxy server|DNS server|database server|backup tool|version control system|programming language|compiler|debugger|static site generator|wiki|spreadsheet|word processor|calculator|chess|puzzle game|strategy game|role-playing game|shooter|card game|platform game|arcade game|screenshot|screen recorder|video editor|audio editor|image editor|vector graphics editor|raytracer|game engine|emulator|network scanner|packet sniffer|firewall|VPN|load balancer|log analyzer|system monitor|process viewer|disk usage|partition editor|chat client|Jabber client|XMPP client|Matrix client|SIP client|note-taking|todo list|calendar|address book|clipboard manager|application launcher|status bar|color picker|font editor|hex editor|diff viewer|Git client|LaTeX editor|Markdown editor|IDE|integrated development environment|shell|task manager|download manager|podcast|e-book reader|e-book manager|OCR|speech synthesizer|synthesizer|drum machine|sequencer|tuner|MIDI|CD burning|CD ripper|tag editor|photo manager|webcam|3D modeler|CAD|plotting|computer algebra system|statistics|geographic information system|planetarium|molecular viewer|amateur radio|logic analyzer|circuit simulator|typing tutor|flashcard|dictionary|translation tool|spell checker|code formatter|linter|static analyzer|profiler|build system|package manager|container|virtual machine|hypervisor|configuration management|monitoring system|message broker|key-value store|search engine|full-text search|SSH client|remote desktop|VNC server|VNC viewer|file synchronization|duplicate file|archive manager|compression|benchmark|stress test|port scanner|password cracker|intrusion detection|antivirus|steganography|encryption tool|certificate|time tracking|accounting|finance manager|presentation|mind map|diagram editor|UML|JSON|XML editor|CSV|log viewer|serial terminal|screen locker|terminal multiplexer|desktop environment|display manager|notification daemon|web framework|web crawler|HTTP client|HTTP proxy|template engine|parser generator|unit testing|mail transfer agent|mail filter|spam filter|IMAP server|POP3|news reader|mailing list manager|DHCP server|TFTP server|LDAP server|NTP|syslog|cron|init system|boot loader".split('|')
    ALLOWC=set('wiki|spreadsheet|word processor|calculator|IDE|integrated development environment|firewall|load balancer|linter|profiler|build system|hypervisor|version control system|programming language|static site generator|raytracer|shooter|chess|system monitor|partition editor|window manager|e-book reader|computer algebra system|tuner|drum machine|planetarium|geographic information system|antivirus|typing tutor|screen locker|boot loader|init system|mail transfer agent|key-value store|message broker|BitTorrent client|flashcard program|time tracker|terminal multiplexer'.split('|'))
    LANG={'c':'C','c++':'C++','python':'Python','perl':'Perl','java':'Java','ruby':'Ruby','haskell':'Haskell','ocaml':'OCaml','lisp':'Lisp','php':'PHP','shell':'shell','lua':'Lua','tcl':'Tcl','r':'R','ecmascript':'JavaScript','vala':'Vala','c-sharp':'C#','scheme':'Scheme','pascal':'Pascal'}
    CI=collections.defaultdict(list);LI=collections.defaultdict(list)
    for n in names:
        p=P[n]
        if p['sec'] in('libs','libdevel','doc','debug','oldlibs','localization','rust','golang','haskell','perl','introspection','metapackages') or AUX.search(n) or re.search(r'(?i)transitional|dummy|metapackage|plugin|extension for|files for|module for|bindings|documentation|library',p['short']): continue
        s=p['short']
        for c in CATS:
            if not (NOUN.search(c) or c in ALLOWC): continue
            mm=re.search(r'\b'+re.escape(c)+r's?\b',s,re.I)
            if mm and re.match(r'$|[,.;)(]| -| (for|with|written|that|which|to|in|using|based|and|like|supporting|designed|featuring|on|implemented|from|by)\b',s[mm.end():]) and not re.search(r'\b(for|to|of|from|with|on|like|in|against|using|by|into|and|plugin|interface|via|as)\b',s[:mm.start()]):
                CI[c].append(n)
                if c=='shell' : continue
                langs={LANG[t[16:]] for t in p['tags'] if t.startswith('implemented-in::') and t[16:] in LANG}
                txt=re.split(SENT,s+'. '+' '.join(p['paras'][:2]));txt=' '.join(t for k,t in enumerate(txt) if k<3 and n.lower().split('-')[0] in t.lower() or k<2)
                tl=set()
                for w in re.findall(r'\b(?:written|implemented|coded|programmed) (?:entirely |completely |mostly |purely |mainly )?in (?:pure |modern |portable |plain )?(Go|Rust|Python|C\+\+|C#|C|Java|Perl|Ruby|Haskell|OCaml|Erlang|Lua|PHP|JavaScript|Scheme|Lisp|Tcl|Vala|Elixir|Scala|Pascal|D|Ada)(?=[\s.,;)])',txt): tl.add(w)
                langs=tl or langs
                for l in langs: LI[c,l].append(n)
    CQ=["Which package gives me a {c}?","Which package is a {c}?","I need a {c}.","List some {c} packages.","What {c} packages do you know?","Is there a {c} in Debian?","Recommend a {c}.","Search packages for {c}.","find a {c}","Which {c} can I install?","{c} packages?","I'm looking for a {c}. What is there?"]
    LQ=["Which package gives me a {c} written in {l}?","Is there a {c} written in {l}?","I need a {c} written in {l}.","Name a {c} written in {l}.","Which {c} is written in {l}?","Do you know a {c} implemented in {l}?","find a {c} in {l}","I'm looking for a {c} that is written in {l}."]
    def fixan(q,c): return re.sub(r'\ba (?='+re.escape(c)+')','an ',q) if re.match(r'[AEIOaeio]|[FHLMNRSX][A-Z]|XML|FTP',c) and not re.match(r'one|uni',c) else q
    for c,ns in CI.items():
        for rep in range(14):
            q=fixan(R.choice(CQ).format(c=c),c); k=R.sample(ns,min(len(ns),R.choice([1,2,3,4])))
            a=R.choice(['You could try these: ','Some packages: ','For example: ','']) if len(k)>1 else R.choice(['You could try ','For example ',''])
            a+=R.choice(['; ','\n'] if len(k)>1 else ['; ']).join('%s (%s)'%(n,P[n]['short']) for n in k)
            T=[(q,a if '\n' in a else dot(a))]
            if R.random()<.4:
                n=k[0]; T.append((R.choice(["Tell me more about {x}.","What is {x}?","more about {x}","How do I install {x}?"]).format(x=n),None)); u=T[-1][0]; T[-1]=(u,inst(n) if 'install' in u else a_pkg(P[n],False))
            conv(closing(T));STAT['category']+=1
    for (c,l),ns in LI.items():
        for rep in range(min(8,3+len(ns))):
            q=fixan(R.choice(LQ).format(c=c,l=l),c);k=R.sample(ns,min(len(ns),R.choice([1,2,3])))
            a='; '.join('%s (%s)'%(n,P[n]['short']) for n in k) if R.random()<.7 else ' and '.join(k[:2])
            T=[(q,R.choice(['You could try ','For example: ',''])+a+'.')]
            if R.random()<.3: T.append((R.choice(["Tell me more about {x}.","What is {x}?"]).format(x=k[0]),a_pkg(P[k[0]],False)))
            conv(closing(T));STAT['lang']+=1
    PP=[n for n in ([c for c in POPN if not resolve(c)]+'nginx apache2 docker.io postgresql redis-server mariadb-server firefox-esr chromium libreoffice gimp inkscape vlc mpv blender audacity krita thunderbird emacs neovim geany kate ripgrep fd-find bat fzf htop btop neofetch gcc g++ clang build-essential cmake nodejs npm default-jdk openjdk-17-jdk golang-go rustc cargo ruby php python3-pip python3-venv python3-numpy python3-requests python3-flask python3-django ghc ocaml lighttpd caddy haproxy squid varnish bind9 unbound dnsmasq postfix exim4 dovecot-imapd samba nfs-kernel-server openssh-server openssh-client ufw fail2ban certbot ansible vagrant qemu-system virt-manager podman lxc gnome-shell kde-plasma-desktop xfce4 lxde i3 sway xterm kitty alacritty gnome-terminal zsh fish tmux screen byobu mutt neomutt alpine irssi weechat hexchat pidgin transmission-cli qbittorrent deluge rtorrent rclone syncthing borgbackup restic duplicity rsnapshot timeshift keepassxc pass gnupg cryptsetup wireguard openvpn tor wireshark nmap tcpdump nethack-console supertux frozen-bubble gnuchess 0ad minetest wesnoth pandoc texlive latexmk zathura evince okular calibre imagemagick graphviz gnuplot octave maxima r-base sagemath jupyter-notebook sqlite3 git git-lfs mercurial subversion tig meld vim nano curl wget aria2 rsync lynx w3m'.split()) if n in P]
    for n in dict.fromkeys(PP):
        p=P[n]
        for q in R.sample(PWHAT,min(30,len(PWHAT))):
            T=[(q.format(x=n),a_pkg(p))]
            while R.random()<.45 and len(T)<4:
                f=p_follow(p,' '.join(a for _,a in T))
                if f[0] in [u for u,_ in T] or any(u in G and f[0] in G for u,_ in T for G in (SECP,HOMEP,INSTP)): break
                T.append(f)
            conv(closing(T));STAT['pop_pkg']+=1
        for Q,f in ((SECQ,a_sec),(HOMEQ,a_home),(INSTQ,lambda p:inst(p['n']))):
            for q in R.sample(Q,5): conv(closing([(q.format(x=n),f(p))]));STAT['pop_pkg']+=1
    print('nores',[c for c in POPN if not resolve(c)])
    # 5. small talk, unknown
    for _ in range(2600):
        r=R.random()
        if r<.25: T=[(R.choice(HELLO),R.choice(HELLOA))]
        elif r<.5:
            u=R.choice(WHO);T=[(u,R.choice(WHOAI) if re.search('human|AI|robot',u) else R.choice(WHOA))]
        elif r<.6: T=[(R.choice(HOWRU),R.choice(HOWRUA))]
        elif r<.65: T=[(R.choice(BYE),R.choice(BYEA))]
        elif r<.8: T=[R.choice(MISC)]
        else: T=[(R.choice(OOS),R.choice(OOSA))]
        if R.random()<.45:
            c=R.choice(pops);m=resolve(c);x=shown(m,c); T.append((R.choice(WHAT).format(x=x),a_what(x,m)))
            if R.random()<.4: T.append(follow(m,x,used=T[-1][1]))
        if R.random()<.2: T.append((R.choice(THX),R.choice(THXA)))
        conv(T);STAT['smalltalk']+=1
    for _ in range(9000):
        x=fake();r=R.random()
        q=R.choice(WHAT if r<.55 else PWHAT if r<.75 else INSTQ+HOMEQ+SECQ+PROVQ+EXQ+SYNQ).format(x=x)
        T=[(q,R.choice(UNKA).format(x=x))]
        r=R.random()
        if r<.15: c=R.choice(pops);m=resolve(c);y=shown(m,c); T.append((R.choice(["And {x}?","What about {x}?","ok, and what is {x}?","I meant {x}."]).format(x=y),a_what(y,m)))
        elif r<.25: T.append((R.choice(MORE),R.choice(["I don't know anything about {x}.","Sorry, I don't know {x}, so I can't say more."]).format(x=x)))
        elif r<.4:
            c=R.choice(pops);m=resolve(c);y=shown(m,c); T=[(R.choice(WHAT).format(x=y),a_what(y,m))]+T
        conv(T);STAT['unknown']+=1
    for _ in range(3500): # unknown options of known commands
        c=R.choice(pops);m=resolve(c);x=shown(m,c);O=options(m)
        if len(O)<5: continue
        blob=json.dumps([m.get('desc'),m.get('opts'),m.get('syn')])
        o='--'+syl()+R.choice(['','-'+syl()])
        if o in blob: continue
        conv([(R.choice(OPTQ).format(x=x,o=o),R.choice(["I don't know an option {o} of {x}.","I don't know the option {o} of {x}. See man {x}.","{x} has no option {o} that I know of."]).format(o=o,x=x))]);STAT['unknown_opt']+=1
    # eval rest
    for _ in range(20): x=fake(); conv([(R.choice(EV_WHAT).format(x=x),UNKA[0].format(x=x))],True)
    E2=["Good afternoon","Howdy","Hiya","Morning!"];
    for q in E2: conv([(q,HELLOA[0])],True)
    for q in ["Please tell me who you are.","And you are?","What sort of assistant are you?","Whom am I chatting with?"]: conv([(q,WHOA[0])],True)
    for q in ["Much appreciated!","Many thanks."]: conv([(q,THXA[0])],True)
    for q in ["Who discovered penicillin?","What should I wear today?"]: conv([(q,OOSA[0])],True)
    prim=[n for n in names if P[n]['sec'] in INT and not AUX.search(n) and P[n]['home'] and P[n]['short']]
    while len(EV)<520:
        n=R.choice(prim);p=P[n]; 
        r=R.random()
        if r<.4: conv([("Do you happen to know what the package %s offers?"%n,a_pkg(p,True))],True)
        elif r<.7: conv([("Where on the internet does %s live?"%n,a_home(p))],True)
        else: conv([("Under which section is %s filed?"%n,a_sec(p))],True)
    print(STAT,len(OUT),'pop',len(pops))
    # filter
    def key(c): return json.dumps([m for m in c['messages'] if m['role']!='system'])
    seen=set();keep=[]
    evu={re.sub(r'\W+',' ',m['content'].lower()).strip() for c in EV for m in c['messages'] if m['role']=='user'}
    dropped=collections.Counter()
    for c in OUT:
        k=key(c)
        if k in seen: dropped['dup']+=1;continue
        seen.add(k)
        bad=False
        for m in c['messages']:
            t=m['content']
            if not t or '<email>' in t or CRED.search(t) or len(t)>1200 or sum(ord(ch)>127 for ch in t)>.1*len(t): bad=True
            if m['role']=='user' and re.sub(r'\W+',' ',t.lower()).strip() in evu: bad=True;dropped['evalclash']+=1
        if bad: dropped['bad']+=1;continue
        keep.append(c)
    R.shuffle(keep)
    print('dropped',dropped,'kept',len(keep))
    ek=set();ev=[]
    for c in EV:
        k=key(c)
        if k in ek or any('<email>' in m['content'] or CRED.search(m['content']) for m in c['messages']): continue
        ek.add(k);ev.append(c)
    R.shuffle(ev);ev=ev[:500]
    json.dump(dict(STAT),open('stat.json','w'))
    for fn,L in(('../chat.jsonl',keep),('../eval_chat.jsonl',ev)):
        with open(fn,'w') as f:
            for c in L: f.write(json.dumps(c,ensure_ascii=False)+'\n')
    print('eval',len(ev),'tasks',len(good),'npop',npop)
if __name__=='__main__': main()

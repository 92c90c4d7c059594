# SPDX-License-Identifier: Apache-2.0
# (command, task, one-liner)
T="""ls|list files including hidden ones|ls -a
ls|list files with sizes in a human readable form|ls -lh
ls|list files sorted by time, newest first|ls -lt
ls|list files sorted by size, largest first|ls -lS
ls|list files in reverse order|ls -r
ls|list one file per line|ls -1
ls|list directories recursively|ls -R
ls|show the inode number of each file|ls -i
cp|copy a directory with everything in it|cp -r SOURCE DEST
cp|copy a directory and keep permissions and times|cp -a SOURCE DEST
cp|be asked before a copy overwrites a file|cp -i SOURCE DEST
cp|copy only when the source is newer|cp -u SOURCE DEST
mv|rename a file|mv OLD NEW
mv|move files without overwriting existing ones|mv -n SOURCE DEST
rm|delete a directory and its contents|rm -r DIRECTORY
rm|be asked before every removal|rm -i FILE
mkdir|create a directory along with missing parents|mkdir -p a/b/c
rmdir|remove an empty directory|rmdir DIRECTORY
touch|create an empty file|touch FILE
ln|make a symbolic link|ln -s TARGET LINK
cat|number all lines of a file|cat -n FILE
cat|join two files into one|cat FILE1 FILE2 > FILE3
head|show the first 20 lines of a file|head -n 20 FILE
tail|show the last 20 lines of a file|tail -n 20 FILE
tail|follow a log file as it grows|tail -f FILE
wc|count the lines in a file|wc -l FILE
wc|count the words in a file|wc -w FILE
sort|sort a file by number|sort -n FILE
sort|sort lines in reverse order|sort -r FILE
sort|sort lines and drop duplicates|sort -u FILE
sort|sort human readable sizes such as 2K and 1G|sort -h FILE
sort|sort by the second column|sort -k 2 FILE
uniq|count repeated lines|sort FILE | uniq -c
uniq|show only the repeated lines|sort FILE | uniq -d
cut|print the first field of a comma separated file|cut -d , -f 1 FILE
cut|print the first five characters of each line|cut -c 1-5 FILE
tr|turn lower case into upper case|tr a-z A-Z < FILE
tr|delete all digits from a stream|tr -d 0-9 < FILE
tr|squeeze repeated spaces|tr -s ' ' < FILE
tee|write output to a file and the screen|COMMAND | tee FILE
tee|append output to a file while showing it|COMMAND | tee -a FILE
du|see the total size of a directory|du -sh DIRECTORY
du|show the size of each directory one level deep|du -h --max-depth=1
df|show free disk space in human readable form|df -h
df|show inode usage|df -i
df|show the file system type of each disk|df -T
chmod|make a script executable|chmod u+x FILE
chmod|change permissions of a directory tree|chmod -R u+rwX DIRECTORY
chown|change the owner of a directory tree|chown -R USER DIRECTORY
stat|show the size and times of a file|stat FILE
date|print the date in UTC|date -u
date|print the date as year-month-day|date +%Y-%m-%d
seq|print the numbers from 1 to 10|seq 1 10
sha256sum|check files against a list of SHA256 sums|sha256sum -c SUMS
sha256sum|compute a SHA256 checksum|sha256sum FILE
md5sum|compute an MD5 checksum|md5sum FILE
base64|decode base64 data|base64 -d FILE
split|split a file into pieces of 1000 lines|split -l 1000 FILE
shuf|shuffle the lines of a file|shuf FILE
tac|print a file with its last line first|tac FILE
nl|number the lines of a file|nl FILE
timeout|stop a command after ten seconds|timeout 10 COMMAND
nohup|keep a command running after hanging up|nohup COMMAND &
realpath|print the absolute path of a file|realpath FILE
basename|strip the directory from a path|basename PATH
dirname|get the directory part of a path|dirname PATH
uname|show the kernel release|uname -r
nproc|print the number of processing units|nproc
id|print my user and group ids|id
grep|search for text in all files below a directory|grep -r PATTERN DIRECTORY
grep|search without regard to case|grep -i PATTERN FILE
grep|show line numbers of matches|grep -n PATTERN FILE
grep|show lines that do not match|grep -v PATTERN FILE
grep|count matching lines|grep -c PATTERN FILE
grep|list only the names of files that match|grep -l PATTERN FILES
grep|print only the matching part of each line|grep -o PATTERN FILE
grep|match whole words only|grep -w WORD FILE
grep|show two lines of context around each match|grep -C 2 PATTERN FILE
grep|search for a fixed string instead of a pattern|grep -F STRING FILE
grep|use extended regular expressions|grep -E PATTERN FILE
sed|replace text in a stream|sed 's/OLD/NEW/g' FILE
sed|edit a file in place|sed -i 's/OLD/NEW/g' FILE
sed|print only lines 5 to 10|sed -n '5,10p' FILE
sed|delete empty lines|sed '/^$/d' FILE
sed|use extended regular expressions|sed -E 's/OLD/NEW/' FILE
gawk|print the first column of a file|awk '{ print $1 }' FILE
gawk|use a colon as the field separator|awk -F : '{ print $1 }' FILE
gawk|set a variable before the program runs|awk -v name=value 'BEGIN { print name }'
find|find files by name|find DIRECTORY -name '*.txt'
find|find files by name ignoring case|find DIRECTORY -iname '*.txt'
find|find only directories|find DIRECTORY -type d
find|find files larger than 100 megabytes|find DIRECTORY -size +100M
find|find files changed in the last day|find DIRECTORY -mtime -1
find|find empty files|find DIRECTORY -empty
find|delete files that match a name|find DIRECTORY -name '*.tmp' -delete
find|run a command on each file found|find DIRECTORY -type f -exec COMMAND {} \\;
find|limit how deep the search goes|find DIRECTORY -maxdepth 2
xargs|pass file names with spaces safely|find DIRECTORY -print0 | xargs -0 COMMAND
xargs|run up to four commands at a time|xargs -P 4 -n 1 COMMAND
tar|create a gzip compressed archive|tar -czf ARCHIVE.tar.gz DIRECTORY
tar|extract an archive|tar -xf ARCHIVE.tar
tar|list what is in an archive|tar -tf ARCHIVE.tar
tar|create an xz compressed archive|tar -cJf ARCHIVE.tar.xz DIRECTORY
tar|extract an archive into another directory|tar -xf ARCHIVE.tar -C DIRECTORY
tar|leave files out of an archive|tar -czf ARCHIVE.tar.gz --exclude='*.o' DIRECTORY
gzip|decompress a gzip file|gzip -d FILE.gz
gzip|compress a file and keep the original|gzip -k FILE
gzip|compress with the best ratio|gzip -9 FILE
xz|compress a file with xz|xz FILE
xz|decompress an xz file|xz -d FILE.xz
zip|make a zip archive of a directory|zip -r ARCHIVE.zip DIRECTORY
unzip|list the contents of a zip file|unzip -l ARCHIVE.zip
unzip|extract a zip file into a directory|unzip ARCHIVE.zip -d DIRECTORY
zstd|decompress a zstd file|zstd -d FILE.zst
diff|compare two files in unified format|diff -u FILE1 FILE2
diff|compare two directories recursively|diff -r DIR1 DIR2
patch|apply a patch and strip one leading directory|patch -p1 < FILE.patch
ps|list every process on the system|ps -e
ps|list every process with full format|ps -ef
kill|send the KILL signal to a process|kill -KILL PID
pkill|signal processes by matching the full command line|pkill -f PATTERN
pgrep|list process ids with their names|pgrep -l PATTERN
free|show memory usage in human readable form|free -h
top|show only the processes of one user|top -u USER
watch|run a command every five seconds|watch -n 5 COMMAND
lsof|see which process uses a port|lsof -i :PORT
mount|mount a file system read-only|mount -o ro DEVICE DIRECTORY
lsblk|list block devices with their file systems|lsblk -f
ip|show network addresses|ip addr
ip|show the routing table|ip route
ss|list listening TCP sockets|ss -lt
ss|show the process using each socket|ss -p
curl|save a download under its remote name|curl -O URL
curl|follow redirects|curl -L URL
curl|show only the response headers|curl -I URL
curl|write the output to a named file|curl -o FILE URL
curl|send data in a POST request|curl -d 'name=value' URL
curl|add a request header|curl -H 'Name: value' URL
wget|download a file|wget URL
wget|continue a partial download|wget -c URL
wget|save a download under another name|wget -O FILE URL
wget|download a site recursively|wget -r URL
rsync|copy a directory tree and keep attributes|rsync -a SOURCE/ DEST/
rsync|see what a sync would do without doing it|rsync -an SOURCE/ DEST/
rsync|delete files in the target that are gone from the source|rsync -a --delete SOURCE/ DEST/
rsync|show progress during a transfer|rsync -a --progress SOURCE/ DEST/
ssh|connect on another port|ssh -p PORT USER@HOST
ssh|use a given identity file|ssh -i FILE USER@HOST
ssh|forward a local port to a remote host|ssh -L 8080:localhost:80 USER@HOST
ssh|log in through a jump host|ssh -J JUMPHOST USER@HOST
scp|copy a file to a remote host|scp FILE USER@HOST:PATH
scp|copy a directory to a remote host|scp -r DIRECTORY USER@HOST:PATH
ssh-keygen|make an ed25519 key|ssh-keygen -t ed25519
git|create a new repository|git init
git|clone a repository|git clone URL
git|see what changed in the working tree|git status
git|add all changes to the index|git add -A
git|commit with a message|git commit -m 'message'
git|see the history one line per commit|git log --oneline
git|create a branch and switch to it|git switch -c BRANCH
git|show the staged changes|git diff --staged
git|undo changes in a file|git restore FILE
git|stash my changes|git stash
git|download changes without merging them|git fetch
git|amend the last commit|git commit --amend
git|delete a branch|git branch -d BRANCH
git|see who changed each line of a file|git blame FILE
apt|install a package|apt install PACKAGE
apt|remove a package|apt remove PACKAGE
apt|update the package lists|apt update
apt|upgrade all packages|apt upgrade
apt|search for a package|apt search WORD
apt|show details of a package|apt show PACKAGE
apt|remove packages that are no longer needed|apt autoremove
apt|list installed packages|apt list --installed
apt-get|download a package without installing it|apt-get download PACKAGE
apt-get|fetch the source of a package|apt-get source PACKAGE
apt-get|install what is needed to build a package|apt-get build-dep PACKAGE
apt-get|clear the downloaded package files|apt-get clean
apt-cache|see the versions of a package that are available|apt-cache policy PACKAGE
apt-cache|list what a package depends on|apt-cache depends PACKAGE
apt-mark|keep a package at its version|apt-mark hold PACKAGE
dpkg|install a .deb file|dpkg -i FILE.deb
dpkg|list installed packages|dpkg -l
dpkg|list the files of an installed package|dpkg -L PACKAGE
dpkg|find which package owns a file|dpkg -S PATH
dpkg|remove a package together with its configuration|dpkg -P PACKAGE
systemctl|start a service|systemctl start NAME
systemctl|stop a service|systemctl stop NAME
systemctl|restart a service|systemctl restart NAME
systemctl|start a service at boot|systemctl enable NAME
systemctl|see the state of a service|systemctl status NAME
systemctl|list failed units|systemctl --failed
systemctl|reload unit files after editing them|systemctl daemon-reload
journalctl|see the log of one service|journalctl -u NAME
journalctl|follow the system log|journalctl -f
journalctl|see messages since the last boot|journalctl -b
journalctl|see the kernel messages|journalctl -k
make|run four jobs in parallel|make -j4
make|see what would be done without doing it|make -n
make|use another makefile|make -f FILE
make|build in another directory|make -C DIRECTORY
python3.11|run a module as a script|python3 -m MODULE
python3.11|run a short program from the command line|python3 -c 'print(1 + 1)'
perl|run a one-line perl program|perl -e 'print "hello\\n"'
bash|check a script for syntax errors|bash -n SCRIPT
bash|trace the commands of a script|bash -x SCRIPT
man|search the manual page descriptions|man -k WORD
man|open a page from section 5|man 5 NAME
crontab|edit my cron jobs|crontab -e
crontab|list my cron jobs|crontab -l
useradd|add a user with a home directory|useradd -m USER
usermod|add a user to a group|usermod -aG GROUP USER
passwd|lock an account|passwd -l USER
sudo|run a command as another user|sudo -u USER COMMAND
sudo|list what I may run|sudo -l
tmux|start a named session|tmux new-session -s NAME
tmux|attach to a session|tmux attach-session -t NAME
tmux|list sessions|tmux list-sessions
screen|list screen sessions|screen -ls
screen|resume a detached session|screen -r
gpg|encrypt a file for someone|gpg -e -r KEY FILE
gpg|decrypt a file|gpg -d FILE
gpg|sign a file|gpg -s FILE
nmap|scan for hosts without scanning ports|nmap -sn NETWORK
tcpdump|capture packets on an interface|tcpdump -i INTERFACE
tcpdump|save captured packets to a file|tcpdump -w FILE
strace|trace a running process|strace -p PID
strace|follow child processes|strace -f COMMAND
jq|print raw strings|jq -r FILTER FILE
jq|print compact output|jq -c FILTER FILE
ping|send only four packets|ping -c 4 HOST
tree|show only two levels of directories|tree -L 2
less|view a file without wrapping long lines|less -S FILE
file|tell the MIME type of a file|file -i FILE
lscpu|show details of the processor|lscpu
dmesg|follow kernel messages|dmesg -w
hostnamectl|set the host name|hostnamectl set-hostname NAME
timedatectl|set the time zone|timedatectl set-timezone ZONE
swapon|see the swap areas in use|swapon --show
fdisk|list the partition tables|fdisk -l
pdftotext|turn a PDF into text and keep the layout|pdftotext -layout FILE.pdf
qpdf|check a PDF file|qpdf --check FILE.pdf
ffmpeg|convert a media file|ffmpeg -i INPUT OUTPUT
column|line up a table in columns|column -t FILE
comm|show only lines common to two sorted files|comm -12 FILE1 FILE2
join|join two sorted files on a common field|join FILE1 FILE2
paste|put files side by side|paste FILE1 FILE2
fold|wrap lines at 72 characters|fold -w 72 FILE
truncate|empty a file|truncate -s 0 FILE
mktemp|make a temporary directory|mktemp -d
env|run a command with a changed variable|env NAME=VALUE COMMAND
nice|run a command at low priority|nice -n 19 COMMAND
time|measure how long a command takes|time COMMAND
dd|write an image to a device|dd if=IMAGE of=DEVICE bs=4M
cmp|compare two files byte by byte|cmp FILE1 FILE2
od|dump a file in hexadecimal|od -A x -t x1 FILE
strings|print the text inside a binary file|strings FILE
nm|list the symbols of an object file|nm FILE
objdump|disassemble a program|objdump -d FILE
readelf|show the headers of an ELF file|readelf -h FILE
gdb|debug a program with its arguments|gdb --args PROGRAM ARGUMENTS
cmake|configure a build directory|cmake -S SOURCE -B BUILD
cmake|build a configured project|cmake --build BUILD
ninja|build in another directory|ninja -C DIRECTORY
sqlite3|print results with column headers|sqlite3 -header FILE QUERY
psql|run one SQL command|psql -c QUERY DATABASE
pg_dump|dump a database to a file|pg_dump -f FILE DATABASE
shellcheck|check a shell script|shellcheck SCRIPT
netstat|list listening sockets|netstat -l
chroot|run a command with another root directory|chroot DIRECTORY COMMAND
rename|rename many files with an expression|rename 's/OLD/NEW/' FILES
lspci|list PCI devices with their drivers|lspci -k
lsusb|list USB devices as a tree|lsusb -t
blkid|print the attributes of block devices|blkid
mkswap|set up a swap area|mkswap DEVICE
wipefs|erase file system signatures|wipefs -a DEVICE
pv|watch the progress of data in a pipe|pv FILE | COMMAND
parallel|run a command for many arguments at once|parallel COMMAND ::: ARGUMENTS
fzf|pick a line interactively with several selections|fzf -m"""
TASKS=[tuple(l.split('|',2)) for l in T.split('\n')]

#!/usr/bin/env python3
"""tests/life.py BINARY [SEED] [COUNT]: the life of COUNT pools, from SEED on, on the built program.

Each pool has a random layout. Two writers change files in four datasets (one is encrypted) and call fsync, while one
administrator runs random commands: snapshots, clones, send and receive, rewrites, dedup, properties, scrubs; with odd
luck also attach, detach, replace, add, remove, offline, checkpoints, initialize and trim, otherwise damage on one disk at
a time. The daemon is killed in most rounds. Judges: every file that was synced and not touched since has its bytes after
each import, and every third round zdb finds neither error nor leak in the exported pool, also
without a disk that it can do without. Needs FUSE and zdb 2.4; keeps
what it made in the folder that it names when something is wrong.
"""
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

LAYOUTS = {
    "stripe": "{0} {1}",
    "mirror": "mirror {0} {1} {2}",
    "mirrors": "mirror {0} {1} mirror {2} {3}",
    "raidz": "raidz {0} {1} {2}",
    "raidz2": "raidz2 {0} {1} {2} {3} {4}",
    "draid": "draid1:2d:5c:1s {0} {1} {2} {3} {4}",
}
PROPERTIES = """compression=zstd-3 compression=off compression=lz4 dedup=on dedup=off dedup=verify copies=2 copies=1
    recordsize=4k recordsize=128k recordsize=1M checksum=sha256 checksum=on sync=always sync=standard logbias=throughput
    logbias=latency primarycache=metadata primarycache=all xattr=on dnodesize=auto redundant_metadata=most""".split()
DATASETS = "abce"
FILES = 40
LABELS = 4 << 20


class Wrong(Exception):
    """The program has failed its judge."""


class Pool:
    """One pool, its model of synced files, and the random choices of its life."""

    def __init__(self, binary, seed):
        self.luck = random.Random(seed)
        self.dir = tempfile.mkdtemp(prefix=f"life-{seed}-")
        self.env = dict(os.environ, AQUIFER_RUN=f"{self.dir}/run")
        self.binary, self.seed = binary, seed
        self.log = open(f"{self.dir}/log", "w", encoding="utf-8")
        self.disks, self.names = 0, 0
        # Digest of each synced file, None for one that was removed; files that are being changed are not in it.
        self.model, self.lock = {}, threading.Lock()
        self.over, self.damaged, self.spared = False, False, 0
        self.rots = self.luck.random() < 0.5
        layouts = [name for name in LAYOUTS if not (self.rots and name == "stripe")]
        self.layout = self.luck.choice(layouts)
        os.makedirs(f"{self.dir}/disks")
        disks = [self.disk(300) for _ in range(5)]
        self.must(f"zpool create -o ashift={self.luck.choice([9, 12])} -O atime=off -R {self.dir}/mnt tank "
                  + LAYOUTS[self.layout].format(*disks))
        for name in "abc":
            self.must(f"zfs create tank/{name}")
        with open(f"{self.dir}/key", "w", encoding="utf-8") as key:
            key.write("passphrase\n")
        self.must(f"zfs create -o encryption=on -o keyformat=passphrase -o keylocation=file://{self.dir}/key tank/e")

    def run(self, line, patience=300):
        """Runs a command line of the program; returns its exit code and what it printed."""
        words = [self.binary] + line.split() if isinstance(line, str) else line
        begun = time.monotonic()
        try:
            done = subprocess.run(words, env=self.env, capture_output=True, timeout=patience, check=False)
        except subprocess.TimeoutExpired as late:
            raise Wrong(f"{line} has not ended after {patience} s") from late
        text = (done.stdout + done.stderr).decode(errors="replace")
        self.log.write(f"{time.monotonic() - begun:7.2f} {line} -> {done.returncode} {text[:300]!r}\n")
        self.log.flush()
        if "panick" in text or "fault of ours" in text:
            raise Wrong(f"{line}: {text}")
        return done.returncode, text

    def must(self, line):
        code, text = self.run(line)
        if code:
            raise Wrong(f"{line} -> {code}: {text}")

    def disk(self, mebibytes):
        self.disks += 1
        path = f"{self.dir}/disks/{self.disks}"
        with open(path, "wb") as file:
            file.truncate(mebibytes << 20)
        return path

    def listed(self, line):
        return [row.split()[0] for row in self.run(line)[1].splitlines() if row.split()]

    def leaves(self):
        return [name for name in self.listed("zpool list -vHP tank") if name.startswith(self.dir)]

    def path(self, dataset, luck, writer):
        return f"{self.dir}/mnt/tank/{dataset}/{writer}-{luck.randrange(FILES)}"

    def write(self, writer, luck):
        """Changes one file and enters it into the model once it is synced."""
        dataset = luck.choice(DATASETS)
        if not os.path.ismount(f"{self.dir}/mnt/tank/{dataset}"):
            time.sleep(0.2)
            return
        path, what = self.path(dataset, luck, writer), luck.random()
        with self.lock:
            self.model.pop(path, None)
        if what < 0.12:
            if os.path.exists(path):
                os.unlink(path)
            sync(os.path.dirname(path), os.O_RDONLY)
            with self.lock:
                self.model[path] = None
            return
        if what < 0.25:
            source = self.path(luck.choice("abc"), luck, writer)
            if source == path or not os.path.exists(source):
                return
            subprocess.run(["cp", "--reflink=auto", source, path], capture_output=True, timeout=300, check=False)
            sync(path, os.O_RDWR)
        else:
            size = luck.choice([10, 600, 5000, 70_000, 300_000, 1_500_000])
            data = os.urandom(size) if luck.random() < 0.5 else b"%d text " % luck.randrange(5) * (size // 7)
            whole = what > 0.5 or not os.path.exists(path)
            file = os.open(path, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if whole else 0))
            os.pwrite(file, data, 0 if whole else luck.randrange(200_000))
            os.fsync(file)
            os.close(file)
        digest = digest_of(path)
        with self.lock:
            self.model[path] = digest

    def writes(self, writer, luck):
        while not self.over:
            try:
                self.write(writer, luck)
            except OSError as error:
                # A full pool gets room; a killed daemon comes back.
                if error.errno == 28:
                    self.make_room(writer)
                time.sleep(0.05)

    def make_room(self, writer):
        for name in [f"{self.dir}/mnt/tank/{d}/{writer}-{n}" for d in DATASETS for n in range(FILES)]:
            with self.lock:
                self.model.pop(name, None)
            try:
                os.unlink(name)
            except OSError:
                pass

    def administer(self, luck):
        """Runs one random command. Refusals are answers, too."""
        self.names += 1
        name, dataset = self.names, luck.choice(DATASETS)
        snapshots = self.listed("zfs list -H -o name -t snapshot -r tank")
        leaves = self.leaves()
        if self.rots and leaves and luck.random() < 0.12:
            return self.rot(luck, leaves)
        some = {
            "snapshot": [f"zfs snapshot -r tank@{name}", f"zfs snapshot tank/{dataset}@{name}"],
            "set": [f"zfs set {luck.choice(PROPERTIES)} tank/{dataset}"] * 2,
            "work": [f"zfs rewrite -r {self.dir}/mnt/tank/{dataset}", f"dedup tank/{luck.choice('abc')}"],
            "scan": ["zpool scrub tank", "zpool scrub -p tank", "zpool scrub -w tank", "zpool scrub -s tank"],
            "space": ["zpool initialize tank", "zpool initialize -s tank", "zpool trim tank", "zpool trim -s tank"],
            "list": ["zpool status -v tank", "zfs list -t all -r tank"],
        }
        if snapshots:
            old = luck.choice(snapshots)
            some["destroy"] = [f"zfs destroy {old}"] * 2
            some["clone"] = [f"zfs clone {old} tank/k{name}", f"zfs promote tank/k{luck.randrange(name)}"]
            some["gone"] = [f"zfs destroy -r tank/{luck.choice('kr')}{luck.randrange(name)}"]
            if luck.random() < 0.15:
                pipe = f"{self.binary} zfs send {luck.choice(['', '-w', '-c', '-L', '-e'])} {old} | " \
                       f"{self.binary} zfs receive -u tank/r{name}"
                return self.run(["bash", "-c", pipe])
        if leaves and not self.rots:
            leaf, other = luck.choice(leaves), luck.choice(leaves)
            some["disks"] = [f"zpool replace tank {leaf} {self.disk(400)}", f"zpool detach tank {other}",
                             f"zpool offline -t tank {leaf}", f"zpool online tank {other}",
                             f"zpool online tank {leaf}"]
            if len(leaves) < 9:
                some["disks"].append(f"zpool attach tank {leaf} {self.disk(400)}")
                some["shape"] = [f"zpool add -f tank {self.disk(300)}", f"zpool add -f tank log {self.disk(256)}",
                                 f"zpool add tank cache {self.disk(256)}", f"zpool add tank spare {self.disk(400)}"]
            some["away"] = [f"zpool remove -w tank {luck.choice(self.listed('zpool list -vHP tank')[1:] or [leaf])}"] * 2
            some["checkpoint"] = ["zpool checkpoint tank", "zpool checkpoint -d tank", "zpool checkpoint -d -w tank"]
        return self.run(luck.choice(some[luck.choice(list(some))]))

    def rot(self, luck, leaves):
        """Overwrites parts of one disk; nothing else happens until a scrub has mended them."""
        leaf = luck.choice(leaves)
        self.damaged = True
        with open(leaf, "r+b") as file:
            for _ in range(luck.choice([1, 5, 40])):
                file.seek(luck.randrange(LABELS, os.path.getsize(leaf) - LABELS) // 512 * 512)
                file.write(os.urandom(luck.choice([512, 8192, 1 << 20])))
        self.log.write(f"damage on {leaf}\n")
        self.mend()

    def mend(self):
        self.run("zpool scrub -s tank")
        self.must("zpool wait -t scrub,resilver tank")
        self.must("zpool scrub -w tank")
        self.run("zpool clear tank")
        self.damaged = False

    def administers(self, luck, until):
        try:
            while not self.over and time.monotonic() < until:
                self.administer(luck)
        except Wrong as wrong:
            # A kill ends commands in the middle; the judges see lasting faults.
            self.log.write(f"{wrong}\n")

    def daemon(self):
        try:
            with open(f"{self.dir}/run/lock", encoding="utf-8") as lock:
                return int(lock.read())
        except (OSError, ValueError):
            return None

    def unmount(self):
        with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
            places = [line.split()[4] for line in mounts if self.dir in line]
        for place in sorted(places, reverse=True):
            subprocess.run(["umount", "-l", place], capture_output=True, check=False)

    def come_back(self, how=""):
        self.must(f"zpool import {how} -d {self.dir}/disks -R {self.dir}/mnt tank")
        if self.damaged:
            self.mend()
        self.run("zfs load-key -a")
        self.run("zfs mount -a")

    def judge_files(self, when):
        for path, digest in self.model.items():
            try:
                found = digest_of(path)
            except FileNotFoundError:
                found = None
            if found != digest:
                raise Wrong(f"{when}: {path} was synced as {digest} and is {found}")
        text = self.run("zpool status -v tank")[1]
        if "SUSPENDED" in text or "ermanent errors" in text:
            raise Wrong(f"{when}: {text}")

    def spare_disk(self):
        """A disk that the pool can do without, when every disk has what it must have."""
        for leaf in self.leaves():
            self.run(f"zpool online tank {leaf}")
        self.run("zpool wait -t resilver,replace,remove tank")
        text = self.run("zpool status -P tank")[1]
        if "awaiting" in text or "DEGRADED" in text or "OFFLINE" in text or "in progress" in text:
            return None
        rows = [row for row in text.splitlines() if row.startswith("\t")]
        sections = [n for n, row in enumerate(rows) if row.split()[0] in ("logs", "cache", "spares")]
        rows = rows[:min(sections, default=len(rows))]
        found = [row.split()[0] for row in rows if row.startswith("\t    " + self.dir)]
        return self.luck.choice(found) if found else None

    def judge_bytes(self):
        """Lets zdb judge the exported pool: with all disks, and without one that it can do without."""
        self.run("zpool checkpoint -d -w tank")
        spare = self.spare_disk()
        self.must("zpool export tank")
        self.judge_by_zdb("with all disks")
        if spare:
            os.rename(spare, f"{self.dir}/hidden")
            self.judge_by_zdb(f"without {spare}")
            os.rename(f"{self.dir}/hidden", spare)
            self.spared += 1
        self.come_back()

    def judge_by_zdb(self, how):
        done = subprocess.run(["zdb-2.4", "-e", "-p", f"{self.dir}/disks", "-bcc", "tank"],
                              capture_output=True, check=False)
        text = (done.stdout + done.stderr).decode(errors="replace")
        self.log.write(f"zdb {how} -> {done.returncode}\n")
        if done.returncode or "No leaks" not in text:
            raise Wrong(f"zdb {how}: {text[-2000:]}")

    def round(self, number):
        self.over = False
        length = self.luck.uniform(3, 12)
        lucks = [random.Random(self.luck.random()) for _ in range(3)]
        threads = [threading.Thread(target=self.writes, args=(n, lucks[n])) for n in range(2)]
        until = time.monotonic() + length + 5
        threads.append(threading.Thread(target=self.administers, args=(lucks[2], until)))
        for thread in threads:
            thread.start()
        time.sleep(length)
        killed = self.luck.random() < 0.6
        if killed:
            with self.lock:
                kept, daemon = dict(self.model), self.daemon()
                if daemon:
                    os.kill(daemon, signal.SIGKILL)
            self.over = True
            self.unmount()
        self.over = True
        for thread in threads:
            thread.join()
        if killed:
            self.model = kept
            self.unmount()
            time.sleep(0.3)
            self.come_back("-f")
        self.judge_files(f"round {number}{', killed' if killed else ''}")
        if number % 3 == 2:
            self.judge_bytes()
            self.judge_files(f"round {number}, imported again")

    def end(self):
        self.run("zpool export -f tank")
        if daemon := self.daemon():
            os.kill(daemon, signal.SIGTERM)
            time.sleep(1)
        self.unmount()
        shutil.rmtree(self.dir, ignore_errors=True)


def sync(path, flags):
    file = os.open(path, flags)
    os.fsync(file)
    os.close(file)


def digest_of(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def main():
    binary = os.path.realpath(sys.argv[1])
    seed, count = (int(word) for word in (sys.argv[2:] + ["1", "10"][len(sys.argv) - 2:])[:2])
    for life in range(seed, seed + count):
        pool = Pool(binary, life)
        try:
            for number in range(6):
                pool.round(number)
        except Wrong as wrong:
            print(f"seed {life} ({pool.layout}): {wrong}\nkept: {pool.dir}")
            sys.exit(1)
        print(f"seed {life}: {pool.layout}{', with damage' if pool.rots else ''}: "
              f"{len(pool.model)} files right, no leak, {pool.spared} times without a disk", flush=True)
        pool.end()


main()

"""Seeks for data and holes while the file is changed through a shared mapping.

Prints what is wrong, or nothing."""
import errno, mmap, os, subprocess, sys, threading, time

MIB = 1 << 20
path, twin, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
SIZE = 64 * MIB
file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(file, SIZE)
view = mmap.mmap(file, SIZE)


def seek(at, what):
    try:
        return os.lseek(file, at, what)
    except OSError as e:
        return errno.errorcode[e.errno]


def expect(what, found, wanted):
    if found != wanted:
        print(what, found, 'instead of', wanted)


expect('hole', seek(0, os.SEEK_DATA), 'ENXIO')
view[MIB:MIB + 65536] = b'DATA' * 16384
expect('data', seek(0, os.SEEK_DATA), MIB)
view[2 * MIB:3 * MIB] = b'MORE' * (MIB // 4)
view[20 * MIB:20 * MIB + 5] = b'tail!'
expect('end of data', seek(2 * MIB, os.SEEK_HOLE), 3 * MIB)
expect('data behind a hole', seek(3 * MIB, os.SEEK_DATA), 20 * MIB)
for at in range(4 * MIB, 8 * MIB, 2 * MIB):
    os.pwrite(file, b'x' * MIB, at)
# Holes that are filled to their ends, one after the other.
view[3 * MIB:8 * MIB] = b'FILL' * (5 * MIB // 4)
expect('filled holes', seek(2 * MIB, os.SEEK_HOLE), 8 * MIB)
view[30 * MIB] = 7
subprocess.run(['cp', '--sparse=auto', path, twin], check=True)
with open(twin, 'rb') as copy:
    expect('a copy is equal', copy.read() == view[:], True)
os.unlink(twin)

# Many at once: every request gets its answer.
end = time.monotonic() + seconds
done = [0] * 5


def repeat(index, work):
    step = 0
    while time.monotonic() < end:
        work(step)
        step += 1
    done[index] = step


def stores(step):
    at = step * 7919 * 4096 % SIZE
    view[at:at + 100] = bytes(100)


def seeks(step):
    at = 0
    while isinstance(at, int) and at < SIZE and time.monotonic() < end:
        at = seek(at, os.SEEK_DATA)
        at = seek(at, os.SEEK_HOLE) if isinstance(at, int) else SIZE


def writes(step):
    os.pwrite(file, b'w' * 5000, step * 104729 % (SIZE - 5000))
    os.pread(file, 200000, step * 15485863 % (SIZE - 5000))


def punches(step):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
    libc.fallocate(file, 3, step * 1299709 % SIZE, 4 * MIB)
    if step % 8 == 0:
        os.fsync(file)


works = [stores, seeks, seeks, writes, punches]
threads = [threading.Thread(target=repeat, args=(i, work), daemon=True) for i, work in enumerate(works)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(seconds + 60)
if any(thread.is_alive() for thread in threads) or not all(done):
    print('a request has no answer', done)
    sys.stdout.flush()
    os._exit(1)

"""Asynchronous direct writes beside readers through pages: once a write is done, readers see it.

Prints how many bytes were wrong."""
import ctypes, mmap, os, platform, struct, sys, time

SETUP, SUBMIT, EVENTS = {'x86_64': (206, 209, 208), 'aarch64': (0, 2, 4)}[platform.machine()]
PIECE, PIECES = 65536, 16
libc = ctypes.CDLL(None, use_errno=True)
path, rounds = sys.argv[1], int(sys.argv[2])
direct = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
check = os.open(path, os.O_RDWR)
os.pwrite(check, bytes(PIECE * PIECES), 0)
readers = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        while os.getppid() != 1:
            for piece in range(PIECES):
                os.pread(check, PIECE, piece * PIECE)
        os._exit(0)
    readers.append(pid)
context = ctypes.c_ulong()
assert libc.syscall(SETUP, PIECES, ctypes.byref(context)) == 0
buffer = mmap.mmap(-1, PIECE)
address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
wrong = 0
for number in range(rounds):
    byte = bytes([number % 255 + 1])
    buffer[:] = byte * PIECE
    # struct iocb: data, key and flags, operation, priority, descriptor, address, bytes, offset
    form = '<QIIHhIQQq'
    blocks = [ctypes.create_string_buffer(
        struct.pack(form, 0, 0, 0, 1, 0, direct, address, PIECE, piece * PIECE) + bytes(16)) for piece in range(PIECES)]
    pointers = (ctypes.c_void_p * PIECES)(*[ctypes.addressof(block) for block in blocks])
    assert libc.syscall(SUBMIT, context, PIECES, pointers) == PIECES, ctypes.get_errno()
    events = ctypes.create_string_buffer(32 * PIECES)
    assert libc.syscall(EVENTS, context, PIECES, PIECES, events, None) == PIECES
    data = os.pread(check, PIECE * PIECES, 0)
    wrong += len(data) - data.count(byte)
for pid in readers:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
print(wrong)

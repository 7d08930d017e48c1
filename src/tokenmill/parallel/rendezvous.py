"""The meeting of an engine's ranks, which rank 0 starts on this machine, or torchrun on one or several.

Either way each rank has a channel to rank 0, and a store of torch.distributed in which the process group meets. Ranks
that rank 0 starts have a socket pair and a file, so nothing listens but gloo, on loopback. Under torchrun the ranks use
its store, and listen at the address by which they reach MASTER_ADDR.
"""

import json
import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from hmac import compare_digest
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import FileStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from tokenmill.errors import ConfigError, RankLost
from tokenmill.parallel.channel import Channel
from tokenmill.parallel.processes import start

LOOPBACK = "127.0.0.1"
WAIT_S = 300.0  # for ranks that torchrun starts elsewhere, where reading the program may take minutes
TOKEN_BYTES = 32


@dataclass
class Meeting:
    """One rank's side of a meeting. local_rank: its number on its machine. channels: rank 0's to ranks 1, 2, …; another
    rank's to rank 0. processes: the ranks that rank 0 has started. folder: of the store's file.
    """

    rank: int
    size: int
    local_rank: int
    address: str
    channels: list[Channel]
    store_path: str = ""
    store: Store | None = None
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    folder: tempfile.TemporaryDirectory[str] | None = None

    def open_store(self) -> Store:
        """Open the store in which the process group meets."""
        return self.store or FileStore(self.store_path, self.size)


def torchrun_size(environment: Mapping[str, str] = os.environ) -> int | None:
    """Count the ranks that torchrun has started, or a program that sets the same variables; None where there is
    none.
    """
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
        return None
    return _number(environment, "WORLD_SIZE")


def meet_torchrun(size: int, environment: Mapping[str, str] = os.environ) -> Meeting:
    """Meet the other ranks that torchrun has started. RankLost if one does not come."""
    if (found := _number(environment, "WORLD_SIZE")) != size:
        raise ConfigError("tensor_parallel", size, f"{found}, because torchrun has started so many processes")
    rank, local = _number(environment, "RANK"), _number(environment, "LOCAL_RANK", environment["RANK"])
    host, port = environment["MASTER_ADDR"], _number(environment, "MASTER_PORT")
    if rank >= size:
        raise ConfigError("RANK", rank, f"0 to {size - 1}, because WORLD_SIZE is {size}")
    if not 0 < port < 1 << 16:
        raise ConfigError("MASTER_PORT", port, "1 to 65535")
    if rank == 0:
        own_address(host, port)  # torch would ask again and again; others wait until the name of rank 0 is known
    store = PrefixStore("tokenmill", _open_store(rank, size, f"{host}:{port}"))
    address = own_address(host, port)
    channels = _listen(store, size, address) if rank == 0 else [_connect(store, rank)]
    return Meeting(rank, size, local, address, channels, store=store)


def _open_store(rank: int, size: int, place: str) -> Store:
    try:
        store, _, _ = next(iter(rendezvous("env://", rank, size, timeout=timedelta(seconds=WAIT_S))))
    except (RuntimeError, ValueError) as error:  # the port is in use, or nobody is there
        why = (str(error).splitlines() or [type(error).__name__])[0]
        allowed = f"an address where rank 0 can listen and the others reach it ({why})"
        raise ConfigError("MASTER_ADDR and MASTER_PORT", place, allowed) from error
    return store  # type: ignore[no-any-return]


def start_ranks(size: int, module: str, task: Any) -> Meeting:
    """Start the other ranks as processes on this machine, which run a module and are told the task."""
    folder = tempfile.TemporaryDirectory(prefix="tokenmill-ranks-")
    meeting = Meeting(0, size, 0, LOOPBACK, [], str(Path(folder.name, "store")), folder=folder)
    for rank in range(1, size):
        ours, process = start(module)
        meeting.processes.append(process)
        meeting.channels.append(channel := Channel(ours))
        channel.send("start", {"rank": rank, "size": size, "store": meeting.store_path, "task": task})
    return meeting


def meet_starter(descriptor: int) -> tuple[Meeting, Any]:
    """Meet rank 0, which has started this rank, and take the task. EOFError if rank 0 has ended."""
    channel = Channel(socket.socket(fileno=descriptor))
    told = channel.receive().facts
    rank, size = told["rank"], told["size"]
    return Meeting(rank, size, rank, LOOPBACK, [channel], told["store"]), told["task"]


def own_address(host: str, port: int) -> str:
    """Find the address of this machine by which it reaches a host; loopback where the host's name says so."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)  # of datagrams: nothing is sent
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError("MASTER_ADDR", host, f"a machine that can be reached ({error.strerror})") from None


def _listen(store: Store, size: int, address: str) -> list[Channel]:
    """Let the other ranks connect. A client that does not know the token of the store is not one of them."""
    token, channels = secrets.token_hex(TOKEN_BYTES // 2).encode(), dict[int, Channel]()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        server.settimeout(WAIT_S)
        store.set("control", json.dumps([address, server.getsockname()[1], token.decode()]))
        while len(channels) < size - 1:
            try:
                other, _ = server.accept()
            except TimeoutError:
                missing = sorted({*range(1, size)} - channels.keys())
                raise RankLost(f"ranks {missing} did not come within {WAIT_S:.0f} s") from None
            other.settimeout(WAIT_S)
            found = other.recv(TOKEN_BYTES + 8, socket.MSG_WAITALL)
            rank = int.from_bytes(found[TOKEN_BYTES:], "little")
            if compare_digest(found[:TOKEN_BYTES], token) and 0 < rank < size and rank not in channels:
                other.settimeout(None)
                channels[rank] = Channel(other)
            else:
                other.close()
    return [channels[rank] for rank in range(1, size)]


def _connect(store: Store, rank: int) -> Channel:
    address, port, token = json.loads(store.get("control"))
    connected = socket.create_connection((address, port), WAIT_S)
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.sendall(token.encode() + rank.to_bytes(8, "little"))
    return Channel(connected)


def _number(environment: Mapping[str, str], name: str, default: str = "") -> int:
    value = environment.get(name, default)
    if not value.isdecimal():
        raise ConfigError(name, value, "a whole number, as torchrun sets it")
    return int(value)

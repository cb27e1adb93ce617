"""Runs a command in namespaces of its own, and tells what it asked of a network that is not there.

    unshare --net --mount python witness.py REPORT COMMAND...

All addresses lead to the loopback interface, where every packet is seen, and a resolver answers
that no name exists. The report is a JSON object: ``code`` of the command, its ``output``, the
``lookups``, the addresses of ``packets`` that would have left the machine, and new ``files`` in the
folders that all programs share (beside that for temporary files, which is the caller's choice).
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

SHARED = (Path("/dev/shm"), Path("/var/tmp"))


def main(report: str, command: Sequence[str]) -> None:
    """Run ``command`` and write the report."""
    for words in (
        "link set lo up",
        "route add local default dev lo",
        "-6 route add local default dev lo",
    ):
        # The last fails where there is no IPv6, and then nothing can be sent by it.
        subprocess.run(["ip", *words.split()], check="-6" not in words, capture_output=True)
    resolver = Path(report).with_suffix(".resolver")
    resolver.write_text("nameserver 127.0.0.1\n")
    subprocess.run(["mount", "--bind", resolver, "/etc/resolv.conf"], check=True)
    for folder in SHARED:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    lookups, packets = list[str](), list[str]()
    sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
    sniffer.bind(("lo", 0))
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    threading.Thread(target=answer, args=(server, lookups), daemon=True).start()
    threading.Thread(target=watch, args=(sniffer, packets), daemon=True).start()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    time.sleep(0.2)  # for what is still in the queues of the two sockets
    found = {
        "code": done.returncode,
        "output": done.stdout.decode(errors="replace"),
        "lookups": sorted(set(lookups)),
        "packets": sorted(set(packets)),
        "files": [str(f) for folder in SHARED for f in folder.rglob("*")],
    }
    Path(report).write_text(json.dumps(found))


def answer(server: socket.socket, lookups: list[str]) -> None:
    """Answer every question with "no such name", and note the name."""
    while True:
        asked, sender = server.recvfrom(4096)
        labels, at = list[str](), 12
        while asked[at]:
            labels.append(asked[at + 1 : at + 1 + asked[at]].decode(errors="replace"))
            at += 1 + asked[at]
        lookups.append(".".join(labels))
        server.sendto(asked[:2] + b"\x81\x83" + asked[4:6] + bytes(6) + asked[12:], sender)


def watch(sniffer: socket.socket, packets: list[str]) -> None:
    """Note the address of every packet that is neither to nor from this machine."""
    while True:
        packet = sniffer.recv(65536)
        if packet[0] >> 4 == 4 and 127 not in (packet[12], packet[16]):
            packets.append(socket.inet_ntop(socket.AF_INET, packet[16:20]))
        elif packet[0] >> 4 == 6 and packet[24:40] != bytes(15) + b"\x01":
            packets.append(socket.inet_ntop(socket.AF_INET6, packet[24:40]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

"""What W&B's offline files hold."""

import json
import struct


def read_history(path):
    """W&B's own step and the values of each row that an offline file holds; of a table or a
    picture, a dictionary."""
    for record in read_records(path):
        if record.WhichOneof("record_type") == "history":
            values = {}
            for item in record.history.item:
                name, *parts = item.nested_key or [item.key]
                if parts:
                    values.setdefault(name, {})["/".join(parts)] = json.loads(item.value_json)
                else:
                    values[name] = json.loads(item.value_json)
            yield record.history.step.num, values


def read_records(path):
    """W&B's protocol buffers of the kind `Record` that an offline file holds, as far as it was
    written.

    The file is a LevelDB log: blocks of 32 KiB; fragments with crc, length and kind.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    position = 7
    record = b""  # after W&B's own header
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4) and position <= len(data):  # whole, or the last fragment
            yield Record.FromString(record)
            record = b""

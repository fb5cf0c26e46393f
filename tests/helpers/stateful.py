"""A job with state and without Spark: the same driver, ledger and log, and files of state as Spark would write them."""

from __future__ import annotations

import json
import os
import uuid
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

from small import Small

from fencepost.store.parts import HADOOP_EVERY, HADOOP_MAGIC, crc32c_of

PARTITIONS = 3


@dataclass(frozen=True)
class Stateful(Small):
    """The same job with files of state as Spark writes them: a snapshot of epoch 1, and what each epoch changed."""

    def epoch(self, driver: Any) -> None:
        number = len(list(self.checkpoint.glob("commits/[0-9]*")))
        ids = [[uuid.uuid4().hex] for _ in range(PARTITIONS)]
        for partition, [unique] in enumerate(ids):
            self._write(f"{partition}/{number + 1}_{unique}.changelog", os.urandom(700))
            if number == 1:
                self._snapshot(partition, f"{number + 1}_{unique}.zip")
        if number == 0:
            self._schemas()
        text = "v2\n" + json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": ids}})
        self._log("offsets", number, f'v1\n{{"conf":{{}}}}\n{{"position":{number}}}')
        driver.run_epoch(number, (), lambda: text)
        self._log("commits", number, text)

    def _write(self, name: str, data: bytes) -> None:
        """With Spark's sum beside it."""
        path = self.checkpoint / "state" / "0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        total = {"algorithm": "CRC32C", "value": crc32c_of(data), "mainFileSize": len(data)}
        path.with_name(f"{path.name}.crc").write_text(json.dumps(total))

    def _snapshot(self, partition: int, name: str) -> None:
        data = os.urandom(1000)
        table = self.checkpoint / "state" / "0" / str(partition) / "SSTs" / f"000008-{uuid.uuid4()}.sst"
        table.parent.mkdir(parents=True)
        table.write_bytes(data)
        pieces = [zlib.crc32(data[at : at + HADOOP_EVERY]) for at in range(0, len(data), HADOOP_EVERY)]
        total = b"".join(piece.to_bytes(4, "big") for piece in pieces)
        table.with_name(f".{table.name}.crc").write_bytes(HADOOP_MAGIC + HADOOP_EVERY.to_bytes(4, "big") + total)
        archive = self.folder / "snapshot.zip"
        with zipfile.ZipFile(archive, "w") as file:
            said = {"sstFiles": [{"dfsSstFileName": table.name, "sizeBytes": len(data)}]}
            file.writestr("metadata", f"v1\n{json.dumps(said)}")
        self._write(f"{partition}/{name}", archive.read_bytes())

    def _schemas(self) -> None:
        """Of keyed state: its metadata names the place where it lies."""
        operator = self.checkpoint / "state" / "0"
        schema = operator / "_stateSchema" / "default" / "0_schema"
        schema.parent.mkdir(parents=True)
        schema.write_text("v3\n{}")
        store = {"storeName": "default", "numPartitions": PARTITIONS, "stateSchemaFilePaths": [f"file:{schema}"]}
        metadata = operator / "_metadata" / "v2" / "0"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"v2\n{json.dumps({'operatorInfo': {'operatorName': 'keyed'}, 'stateStoreInfo': [store]})}")

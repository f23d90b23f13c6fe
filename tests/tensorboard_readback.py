"""Reads a TensorBoard log folder with the `tensorboard` package and prints what it holds as JSON.

Usage: tensorboard_readback.py FOLDER

Every file is read twice: record by record with all checksums verified, and through EventAccumulator, which is
what the TensorBoard server uses. Needs `pip install tensorboard`.
"""

import json
import os
import sys

from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.compat.proto import event_pb2
from tensorboard.compat.tensorflow_stub.errors import OutOfRangeError
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as layout_metadata
from tensorboard.plugins.histogram import metadata as histogram_metadata
from tensorboard.plugins.scalar import metadata as scalar_metadata
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.util import tensor_util


def read_records(path):
    """The events of one file; raises where framing or a checksum is wrong."""
    reader = PyRecordReader_New(path)
    events = []
    while True:
        try:
            reader.GetNext()
        except OutOfRangeError:
            return events
        event = event_pb2.Event()
        event.ParseFromString(reader.record())
        events.append(event)


def read_folder(folder):
    files = sorted(name for name in os.listdir(folder) if "tfevents" in name)
    raw = {}
    for name in files:
        events = read_records(os.path.join(folder, name))
        raw[name] = {
            "file_version": events[0].file_version,
            "events": len(events),
            "raw_histograms": [
                {
                    "tag": value.tag,
                    "min": value.histo.min,
                    "max": value.histo.max,
                    "num": value.histo.num,
                    "sum": value.histo.sum,
                    "sum_squares": value.histo.sum_squares,
                    "limits": list(value.histo.bucket_limit),
                    "counts": list(value.histo.bucket),
                }
                for event in events
                for value in event.summary.value
                if value.HasField("histo")
            ],
        }

    plugins = (scalar_metadata, histogram_metadata, text_metadata, layout_metadata)
    keep_all = {plugin.PLUGIN_NAME: 0 for plugin in plugins}
    accumulator = EventAccumulator(folder, tensor_size_guidance=keep_all)
    accumulator.Reload()
    scalars, histograms, texts, layout = {}, {}, {}, {}
    for tag in accumulator.Tags()["tensors"]:
        plugin = accumulator.SummaryMetadata(tag).plugin_data.plugin_name
        points = [(e.step, tensor_util.make_ndarray(e.tensor_proto)) for e in accumulator.Tensors(tag)]
        if plugin == scalar_metadata.PLUGIN_NAME:
            scalars[tag] = [[step, float(value)] for step, value in points]
        elif plugin == histogram_metadata.PLUGIN_NAME:
            histograms[tag] = [[step, value.tolist()] for step, value in points]
        elif plugin == text_metadata.PLUGIN_NAME:
            texts[tag] = [[step, [item.decode() for item in value.tolist()]] for step, value in points]
        elif tag == layout_metadata.CONFIG_SUMMARY_TAG and plugin == layout_metadata.PLUGIN_NAME:
            page = layout_pb2.Layout.FromString(points[-1][1].item())
            for category in page.category:
                layout[category.title] = {chart.title: list(chart.multiline.tag) for chart in category.chart}
    return {"files": raw, "scalars": scalars, "histograms": histograms, "texts": texts, "layout": layout}


def main():
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
        sys.exit(__doc__)
    root = sys.argv[1]
    runs = {}
    for folder, _, names in os.walk(root):
        if any("tfevents" in name for name in names):
            runs[os.path.relpath(folder, root)] = read_folder(folder)
    json.dump(runs, sys.stdout, sort_keys=True)


if __name__ == "__main__":
    main()

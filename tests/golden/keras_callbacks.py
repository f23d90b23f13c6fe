# requires: keras==3.15.1 jax scipy
"""What Keras' own EarlyStopping and ModelCheckpoint decide on fixed inputs, driven without a model.

Keras' numpy backend imports jax and scipy.
"""

import argparse
import itertools
import json
import os
import pathlib
import random
import warnings

os.environ.setdefault("KERAS_BACKEND", "numpy")

import keras  # noqa: E402

warnings.simplefilter("ignore")


class Model:
    """What a callback needs of a model."""

    def __init__(self):
        self.stop_training = False
        self.epoch = None
        self.kept = []
        self.restored = None
        self.saved = []

    def get_weights(self):
        self.kept.append(self.epoch)
        return self.epoch

    def set_weights(self, weights):
        self.restored = weights

    def save(self, path, overwrite=True):
        self.saved.append(path)


def early_stopping(values, **options):
    model = Model()
    callback = keras.callbacks.EarlyStopping(monitor="val_loss", **options)
    callback.set_model(model)
    callback.on_train_begin()
    stopped = None
    for epoch, value in enumerate(values):
        model.epoch = epoch
        callback.on_epoch_end(epoch, {} if value is None else {"val_loss": value})
        if model.stop_training:
            stopped = epoch
            break
    callback.on_train_end()
    return {"values": values, "options": options, "stopped": stopped, "restored": model.restored}


def model_checkpoint(epochs, **options):
    """`epochs`: per epoch the batch indices of `on_batch_end` and the value at its end."""
    model = Model()
    path = "c/{epoch:02d}-{val_loss:.2f}.keras"
    callback = keras.callbacks.ModelCheckpoint(path, monitor="val_loss", **options)
    callback.set_model(model)
    callback.on_train_begin()
    # Keras does this at the first epoch end only, and fails on batches before it.
    callback._set_monitor_op()
    for epoch, (batches, value) in enumerate(epochs):
        callback.on_epoch_begin(epoch)
        for batch in batches:
            callback.on_train_batch_end(batch, {"val_loss": value + batch})
        callback.on_epoch_end(epoch, {"val_loss": value})
    return {"epochs": epochs, "options": options, "saved": model.saved}


# Values are multiples of 1/64, so that a backend that computes in float32 decides as one in float64.
def main():
    rng = random.Random(0)
    stopping = []
    for patience, delta, mode, baseline, start, restore in itertools.product(
        [0, 1, 3], [0, 0.25], ["min", "max"], [None, 1.0], [0, 2], [False, True]
    ):
        values = [rng.randrange(129) / 64 for _ in range(10)]
        if rng.random() < 0.3:
            values[rng.randrange(10)] = None
        stopping.append(
            early_stopping(
                values,
                patience=patience,
                min_delta=delta,
                mode=mode,
                baseline=baseline,
                start_from_epoch=start,
                restore_best_weights=restore,
            )
        )

    saving = []
    executions = {1: list(range(10)), 4: [3, 7, 9], 10: [9]}
    for size, frequency, best, mode, threshold in itertools.product(
        executions, ["epoch", 3, 7, 25], [False, True], ["min", "max"], [None, 1.0]
    ):
        epochs = [(executions[size], rng.randrange(129) / 64) for _ in range(4)]
        saving.append(
            model_checkpoint(
                epochs,
                save_freq=frequency,
                save_best_only=best,
                mode=mode,
                initial_value_threshold=threshold,
            )
        )
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    path = parser.parse_args().out / "keras_callbacks.json"
    lists = {"early_stopping": stopping, "model_checkpoint": saving}
    parts = [f'"{name}": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]" for name, cases in lists.items()]
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()

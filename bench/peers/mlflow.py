"""MLflow's logged models on SQLite: a save is a model, its step a parameter, its file an artifact."""

from __future__ import annotations

import logging
import sqlite3
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.cli import gc
from mlflow.entities import LoggedModel
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.tracking._tracking_service.registry import TrackingStoreRegistry

from bench import files
from bench.peers.keeper import Keeper, serve

logging.getLogger("alembic").setLevel(logging.WARNING)
_NEWEST_FIRST = [{"field_name": "creation_time", "ascending": False}]
_STEP = "global_step"


class Mlflow(Keeper):
    """A tracking store in one SQLite file, its artifacts beside it."""

    def __init__(self, home: Path, *, synced: bool) -> None:
        super().__init__(home, synced=synced)
        self.url = f"sqlite:///{home}/mlflow.db"
        mlflow.set_tracking_uri(self.url)

    def _client(self) -> tuple[MlflowClient, str]:
        """Opened anew: what this process keeps of a store is forgotten, as a restart forgets it."""
        SqlAlchemyStore._engine_map.clear()
        TrackingStoreRegistry._get_store_with_resolved_uri.cache_clear()
        client = MlflowClient(self.url)
        known = client.get_experiment_by_name("run")
        if known is not None:
            return client, known.experiment_id
        return client, client.create_experiment("run", artifact_location=str(self.home / "artifacts"))

    def _save(self, client: MlflowClient, experiment: str, step: int) -> LoggedModel:
        model = client.create_logged_model(experiment, name=f"step-{step}", params={_STEP: str(step)})
        self._write(Path(model.artifact_location), step)
        client.finalize_logged_model(model.model_id, "READY")
        return model

    def _write(self, directory: Path, step: int) -> None:
        directory.mkdir(parents=True)
        files.write(directory / "state.ckpt", step, synced=self.synced)

    def fill(self, count: int) -> None:
        """One save; the rows of the others are copied from its rows, with ids and places of their own."""
        client, experiment = self._client()
        first = self._save(client, experiment, 1)
        ids = [(f"m-{uuid.uuid4().hex}", step) for step in range(2, count + 1)]
        with closing(sqlite3.connect(self.home / "mlflow.db")) as store, store:
            store.execute("CREATE TEMP TABLE other (id TEXT, step INTEGER)")
            store.executemany("INSERT INTO other VALUES (?, ?)", ids)
            for table, replaced in _TABLES.items():
                columns = [row[1] for row in store.execute(f"PRAGMA table_info({table})")]
                chosen = ", ".join(replaced.get(column, column) for column in columns)
                store.execute(
                    f"INSERT INTO {table} SELECT {chosen} FROM {table}, other WHERE model_id = ? ORDER BY step",
                    [first.model_id],
                )
        for key, step in ids:
            self._write(Path(first.artifact_location.replace(first.model_id, key)), step)

    def save(self, steps: Sequence[int]) -> float:
        client, experiment = self._client()
        begin = time.perf_counter()
        for step in steps:
            self._save(client, experiment, step)
        return time.perf_counter() - begin

    def _models(self) -> list[LoggedModel]:
        client, experiment = self._client()
        found: list[LoggedModel] = []
        token = None
        while True:
            page = client.search_logged_models([experiment], max_results=100, order_by=_NEWEST_FIRST, page_token=token)
            found += page
            token = page.token
            if not token:
                return found

    def steps(self) -> list[int]:
        return [int(model.params[_STEP]) for model in self._models()]

    def newest(self) -> int:
        client, experiment = self._client()
        (model,) = client.search_logged_models([experiment], max_results=1, order_by=_NEWEST_FIRST)
        return int(model.params[_STEP])

    def prune(self, keep: int) -> None:
        """Each is marked as deleted; then `mlflow gc` deletes what is marked. The directories of its files stay."""
        models = self._models()
        client = MlflowClient(self.url)
        for model in models[keep:]:
            client.delete_logged_model(model.model_id)
        gc.main(["--backend-store-uri", self.url, "--tracking-uri", self.url], standalone_mode=False)


_TABLES = {
    "logged_models": {
        "model_id": "other.id",
        "name": "'step-' || step",
        "artifact_location": "replace(artifact_location, model_id, other.id)",
        "creation_timestamp_ms": "creation_timestamp_ms + step",
        "last_updated_timestamp_ms": "last_updated_timestamp_ms + step",
    },
    "logged_model_params": {"model_id": "other.id", "param_value": "step"},
    "logged_model_tags": {"model_id": "other.id"},
}

if __name__ == "__main__":
    serve(Mlflow)

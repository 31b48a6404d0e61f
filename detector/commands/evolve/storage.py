"""Where a study is stored: an SQLite file in its folder, or a database of several machines."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import optuna
from jsonargparse.typing import SecretStr
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy import URL, column, make_url, select, table
from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError

from boltbox.detector.system.errors import InputError, in_one_line

FILE = "study.db"
ERRORS = (StorageInternalError, SQLAlchemyError)  # when a server does not answer
# of PostgreSQL's drivers: what is locked by a host that is gone or sleeps is free after a minute
TIMEOUTS = {
    "connect_timeout": 10,
    "tcp_user_timeout": 60_000,
    "keepalives_idle": 30,
    "options": "-c idle_in_transaction_session_timeout=60s",
}


def address_of(folder: Path, storage: SecretStr | None) -> URL:
    """Parse the address of a study. The error repeats nothing, as part of it may be a password.

    Args:
        folder: of the study.
        storage: option; None: the file in the folder.

    Raises:
        InputError: it is no address, or that of an SQLite file.
    """
    if storage is None:
        return URL.create("sqlite", database=str((folder / FILE).resolve()))
    with contextlib.suppress(SQLAlchemyError, ValueError):
        url = make_url(storage.get_secret_value())
        if url.get_backend_name() != "sqlite" and "@" not in f"{url.host}{url.database}":
            return url
    raise InputError(
        "evolve.storage is not the address of a database server, like"
        " postgresql://USER@HOST/DATABASE; in a password write @ as %40, / as %2F and : as %3A"
    )


def open_study(url: URL, name: str) -> tuple[RDBStorage, optuna.Study]:
    """Connect to a storage, and create what is missing: its tables and the study.

    Args:
        url: see `address_of`.
        name: of the study.

    Raises:
        InputError: there is no such database, it is no study, or its driver is not installed.
    """
    try:
        storage = _connect(url)
        study = optuna.create_study(
            storage=storage, study_name=name, direction="maximize", load_if_exists=True
        )
    except ImportError:
        raise InputError(
            f"evolve.storage {url.drivername}: its driver is not installed. For PostgreSQL:"
            " pip install 'boltbox[postgresql]'"
        ) from None
    except Exception as e:
        raise InputError(f"{shown(url)} cannot be read as a study: {reason(e)}") from None
    return storage, study


def _connect(url: URL) -> RDBStorage:
    is_postgresql = url.drivername in ("postgresql", "postgresql+psycopg", "postgresql+psycopg2")
    address = url.render_as_string(hide_password=False)
    address = address.replace("{", "{{").replace("}", "}}")  # Optuna formats it
    options = {"pool_pre_ping": True, "connect_args": TIMEOUTS if is_postgresql else {}}
    for _ in range(3):  # of commands that make the tables at the same time, one succeeds
        with contextlib.suppress(IntegrityError, ProgrammingError):
            return RDBStorage(address, options)
    return RDBStorage(address, options)


@contextlib.contextmanager
def exclusive(storage: RDBStorage) -> Iterator[None]:
    """For one command at a time on all machines; the others wait. The server ends it if the command
    is gone.

    Args:
        storage: whose only row of version_info is locked. SQLite has no such locks.
    """
    with storage.engine.begin() as connection:
        row = select(column("version_info_id")).select_from(table("version_info"))
        connection.execute(row.with_for_update()).all()
        yield


def shown(url: URL) -> str:
    """A storage without passwords.

    Args:
        url: of the storage.
    """
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url._replace(password=None, query={}).render_as_string()


def reason(error: BaseException) -> str:
    """What the database's driver says.

    Args:
        error: of Optuna or SQLAlchemy, which wrap it.
    """
    while error.__cause__:
        error = error.__cause__
    return in_one_line(error)[:200]

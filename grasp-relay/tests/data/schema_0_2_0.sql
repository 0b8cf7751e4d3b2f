-- The tables of release 0.2.0, as it made them.
PRAGMA application_id = 1735553904;
PRAGMA user_version = 1;
CREATE TABLE secret (salt BLOB NOT NULL) STRICT;
INSERT INTO secret (salt) VALUES (randomblob(64));

CREATE TABLE events (
    seq    INTEGER PRIMARY KEY,
    newest INTEGER NOT NULL,
    id     BLOB    NOT NULL,
    pubkey BLOB    NOT NULL,
    kind   INTEGER NOT NULL,
    json   TEXT    NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_by_id ON events (id);
CREATE INDEX events_by_time ON events (newest, id);

CREATE TABLE lists (
    list   BLOB    NOT NULL,
    newest INTEGER NOT NULL,
    id     BLOB    NOT NULL,
    kind   INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    PRIMARY KEY (list, newest, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE heads (
    coordinate BLOB    PRIMARY KEY NOT NULL,
    seq        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE expirations (
    at  INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (at, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE superseded (
    seq        INTEGER PRIMARY KEY,
    coordinate BLOB    NOT NULL,
    newest     INTEGER NOT NULL,
    id         BLOB    NOT NULL UNIQUE,
    pubkey     BLOB    NOT NULL,
    expires_at INTEGER,
    json       TEXT    NOT NULL
) STRICT;
CREATE INDEX superseded_by_coordinate ON superseded (coordinate, newest, id);
CREATE INDEX superseded_by_author ON superseded (pubkey, newest);
CREATE INDEX superseded_by_end ON superseded (expires_at);

CREATE TABLE requests (
    seq     INTEGER PRIMARY KEY,
    pubkey  BLOB    NOT NULL,
    id      BLOB    NOT NULL,
    newest  INTEGER NOT NULL,
    clock   INTEGER NOT NULL,
    retired INTEGER NOT NULL DEFAULT 0,
    UNIQUE (pubkey, id)
) STRICT;
CREATE INDEX requests_by_clock ON requests (retired, clock);

CREATE TABLE gates (
    target  BLOB    NOT NULL,
    request INTEGER NOT NULL,
    PRIMARY KEY (target, request)
) STRICT, WITHOUT ROWID;
CREATE INDEX gates_by_request ON gates (request);

CREATE TABLE vanished (
    pubkey BLOB    PRIMARY KEY NOT NULL,
    newest INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE delisted (
    coordinate BLOB    PRIMARY KEY NOT NULL,
    newest     INTEGER NOT NULL,
    id         BLOB    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE unfinished (id BLOB PRIMARY KEY NOT NULL) STRICT, WITHOUT ROWID;

CREATE INDEX expirations_by_event ON expirations (seq, at);

CREATE TABLE views (
    number     INTEGER PRIMARY KEY,
    endpoint   INTEGER NOT NULL,
    identifier TEXT    NOT NULL,
    owner      BLOB    NOT NULL,
    generation INTEGER NOT NULL,
    head       TEXT    NOT NULL,
    refs       TEXT    NOT NULL,
    state      BLOB,
    UNIQUE (endpoint, identifier, owner)
) STRICT;
CREATE INDEX views_by_state ON views (state);

CREATE TABLE generations (last INTEGER NOT NULL) STRICT;
INSERT INTO generations (last) VALUES (0);

CREATE TABLE packs (
    endpoint   INTEGER NOT NULL,
    identifier TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    is_attic   INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    verified   INTEGER NOT NULL DEFAULT (unixepoch()),
    PRIMARY KEY (endpoint, identifier, name, is_attic)
) STRICT, WITHOUT ROWID;

CREATE TABLE retired_refs (
    endpoint   INTEGER NOT NULL,
    identifier TEXT    NOT NULL,
    owner      BLOB    NOT NULL,
    tip        TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    since      INTEGER NOT NULL,
    PRIMARY KEY (endpoint, identifier, owner, tip)
) STRICT, WITHOUT ROWID;

CREATE TABLE garbage (
    endpoint   INTEGER NOT NULL,
    identifier TEXT    NOT NULL,
    mark       INTEGER NOT NULL,
    PRIMARY KEY (endpoint, identifier)
) STRICT, WITHOUT ROWID;

CREATE TABLE held (
    id    BLOB    PRIMARY KEY NOT NULL,
    phase INTEGER NOT NULL,
    since INTEGER NOT NULL,
    until INTEGER NOT NULL,
    event TEXT    NOT NULL
) STRICT;

CREATE TABLE staged (
    id     BLOB    NOT NULL,
    tip    TEXT    NOT NULL,
    place  TEXT    NOT NULL,
    target TEXT    NOT NULL,
    bytes  INTEGER NOT NULL,
    until  INTEGER NOT NULL,
    PRIMARY KEY (id, tip, place)
) STRICT, WITHOUT ROWID;

CREATE TABLE tasks (
    key  TEXT PRIMARY KEY NOT NULL,
    task TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE additions (
    at         INTEGER NOT NULL,
    identifier TEXT    NOT NULL,
    author     BLOB    NOT NULL,
    kind       INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    PRIMARY KEY (at, identifier, author, kind)
) STRICT, WITHOUT ROWID;

-- The tables of a single machine's file, with the same names and columns, so that one is copied into the other table by
-- table; see `sqlite/schema.sql` for what they are. Below them are those that only several machines need.

CREATE TABLE secret (salt BYTEA NOT NULL);

-- `seq` is in the order of commits and never used twice.
CREATE TABLE events (
    seq    BIGINT  PRIMARY KEY,
    newest BIGINT  NOT NULL,
    id     BYTEA   NOT NULL,
    pubkey BYTEA   NOT NULL,
    kind   INTEGER NOT NULL,
    json   TEXT    NOT NULL
);
CREATE UNIQUE INDEX events_by_id ON events (id);
CREATE INDEX events_by_time ON events (newest, id);

CREATE TABLE lists (
    list   BYTEA   NOT NULL,
    newest BIGINT  NOT NULL,
    id     BYTEA   NOT NULL,
    kind   INTEGER NOT NULL,
    seq    BIGINT  NOT NULL,
    -- All columns, so that the table itself is not read.
    PRIMARY KEY (list, newest, id) INCLUDE (kind, seq)
);

CREATE TABLE heads (
    coordinate BYTEA  PRIMARY KEY,
    seq        BIGINT NOT NULL
);

CREATE TABLE expirations (
    at  BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    PRIMARY KEY (at, seq)
);
CREATE INDEX expirations_by_event ON expirations (seq, at);

CREATE TABLE superseded (
    seq        BIGINT PRIMARY KEY,
    coordinate BYTEA  NOT NULL,
    newest     BIGINT NOT NULL,
    id         BYTEA  NOT NULL UNIQUE,
    pubkey     BYTEA  NOT NULL,
    expires_at BIGINT,
    json       TEXT   NOT NULL
);
CREATE INDEX superseded_by_coordinate ON superseded (coordinate, newest, id);
CREATE INDEX superseded_by_author ON superseded (pubkey, newest);
CREATE INDEX superseded_by_end ON superseded (expires_at);

CREATE TABLE requests (
    seq     BIGINT PRIMARY KEY,
    pubkey  BYTEA  NOT NULL,
    id      BYTEA  NOT NULL,
    newest  BIGINT NOT NULL,
    clock   BIGINT NOT NULL,
    retired BIGINT NOT NULL,
    UNIQUE (pubkey, id)
);
CREATE INDEX requests_by_clock ON requests (retired, clock);

CREATE TABLE gates (
    target  BYTEA  NOT NULL,
    request BIGINT NOT NULL,
    PRIMARY KEY (target, request)
);
CREATE INDEX gates_by_request ON gates (request);

CREATE TABLE vanished (
    pubkey BYTEA  PRIMARY KEY,
    newest BIGINT NOT NULL
);

CREATE TABLE delisted (
    coordinate BYTEA  PRIMARY KEY,
    newest     BIGINT NOT NULL,
    id         BYTEA  NOT NULL
);

CREATE TABLE unfinished (id BYTEA PRIMARY KEY);

CREATE TABLE views (
    endpoint    BIGINT NOT NULL,
    identifier  TEXT   NOT NULL,
    owner       BYTEA  NOT NULL,
    generation  BIGINT NOT NULL,
    head        TEXT   NOT NULL,
    refs        TEXT   NOT NULL,
    state       BYTEA,
    maintainers BYTEA  NOT NULL,
    shows       BYTEA,
    PRIMARY KEY (endpoint, identifier, owner)
);
CREATE INDEX views_by_state ON views (state);

CREATE TABLE proposal_refs (
    event      BYTEA  NOT NULL,
    endpoint   BIGINT NOT NULL,
    identifier TEXT   NOT NULL,
    owner      BYTEA  NOT NULL,
    PRIMARY KEY (event, endpoint, identifier, owner)
);

CREATE TABLE generations (last BIGINT NOT NULL);
INSERT INTO generations (last) VALUES (0);

CREATE TABLE packs (
    endpoint   BIGINT NOT NULL,
    identifier TEXT   NOT NULL,
    owner      BYTEA  NOT NULL,
    name       TEXT   NOT NULL,
    bytes      BIGINT NOT NULL,
    verified   BIGINT NOT NULL DEFAULT CAST(extract(epoch FROM now()) AS BIGINT),
    PRIMARY KEY (endpoint, identifier, owner, name)
);

CREATE TABLE retired_refs (
    endpoint   BIGINT NOT NULL,
    identifier TEXT   NOT NULL,
    owner      BYTEA  NOT NULL,
    tip        TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    since      BIGINT NOT NULL,
    PRIMARY KEY (endpoint, identifier, owner, tip)
);

CREATE TABLE garbage (
    endpoint   BIGINT NOT NULL,
    identifier TEXT   NOT NULL,
    owner      BYTEA  NOT NULL,
    mark       BIGINT NOT NULL,
    PRIMARY KEY (endpoint, identifier, owner)
);

CREATE TABLE held (
    id    BYTEA  PRIMARY KEY,
    phase BIGINT NOT NULL,
    since BIGINT NOT NULL,
    until BIGINT NOT NULL,
    event TEXT   NOT NULL
);

CREATE TABLE staged (
    id     BYTEA  NOT NULL,
    tip    TEXT   NOT NULL,
    place  TEXT   NOT NULL,
    target TEXT   NOT NULL,
    bytes  BIGINT NOT NULL,
    until  BIGINT NOT NULL,
    PRIMARY KEY (id, tip, place)
);

CREATE TABLE tasks (
    key  TEXT PRIMARY KEY,
    task TEXT NOT NULL
);

-- Bytes of git data that came within an hour, for the limits of a day, as in SQLite.
CREATE TABLE additions (
    at         BIGINT NOT NULL,
    identifier TEXT   NOT NULL,
    owner      BYTEA  NOT NULL,
    author     BYTEA  NOT NULL,
    kind       BIGINT NOT NULL,
    bytes      BIGINT NOT NULL,
    PRIMARY KEY (at, identifier, owner, author, kind)
);

-- The writer. Each transaction locks this row for sharing and compares the epoch with its own, so that nobody takes over
-- in the middle of one, and whoever was taken over from changes nothing.
CREATE TABLE lease (
    node    TEXT        NOT NULL,
    epoch   BIGINT      NOT NULL,
    expires TIMESTAMPTZ NOT NULL
);
INSERT INTO lease (node, epoch, expires) VALUES ('', 0, 'epoch');

-- The last row number that was given to an event, a kept version or a deletion request.
CREATE TABLE counters (last_seq BIGINT NOT NULL);
INSERT INTO counters (last_seq) VALUES (0);

-- The machines, and what each says about itself.
CREATE TABLE nodes (
    address TEXT        PRIMARY KEY,
    seen    TIMESTAMPTZ NOT NULL,
    report  TEXT        NOT NULL
);

-- The key by which they know each other.
CREATE TABLE node_key (key BYTEA NOT NULL);

-- What operators decide while the server runs; see `sqlite/schema_policy.sql` for what the tables are.
CREATE TABLE policy (
    list    TEXT    NOT NULL,
    subject TEXT    NOT NULL,
    reason  TEXT    NOT NULL,
    actor   TEXT    NOT NULL,
    at      BIGINT  NOT NULL,
    PRIMARY KEY (list, subject)
);

CREATE TABLE policy_version (last BIGINT  NOT NULL);
INSERT INTO policy_version (last) VALUES (0);

CREATE TABLE held_repos (
    identifier TEXT    NOT NULL,
    owner      BYTEA   NOT NULL,
    reason     TEXT    NOT NULL,
    actor      TEXT    NOT NULL,
    since      BIGINT  NOT NULL,
    until      BIGINT  NOT NULL,
    PRIMARY KEY (identifier, owner)
);

CREATE TABLE hidden (
    id         BYTEA   PRIMARY KEY,
    pubkey     BYTEA   NOT NULL,
    newest     BIGINT  NOT NULL,
    own        BYTEA   NOT NULL,
    coordinate BYTEA,
    cause      TEXT    NOT NULL,
    place      BIGINT  NOT NULL,
    since      BIGINT  NOT NULL,
    until      BIGINT  NOT NULL,
    json       TEXT    NOT NULL
);
CREATE INDEX hidden_by_cause ON hidden (cause, place, newest);
CREATE INDEX hidden_by_author ON hidden (pubkey, newest);
CREATE INDEX hidden_by_coordinate ON hidden (coordinate);
CREATE INDEX hidden_by_end ON hidden (until);

CREATE TABLE hidden_causes (cause TEXT PRIMARY KEY);

CREATE TABLE unannounced (
    identifier TEXT NOT NULL,
    owner      BYTEA NOT NULL,
    event      BYTEA NOT NULL,
    PRIMARY KEY (identifier, owner)
);

CREATE TABLE audit (
    seq    BIGINT PRIMARY KEY,
    at     BIGINT  NOT NULL,
    actor  TEXT    NOT NULL,
    via    TEXT    NOT NULL,
    auth   BYTEA,
    method TEXT    NOT NULL,
    params TEXT    NOT NULL,
    error  TEXT    NOT NULL
);

CREATE TABLE roles (
    id          TEXT    PRIMARY KEY,
    label       TEXT    NOT NULL,
    description TEXT    NOT NULL,
    color       TEXT    NOT NULL,
    position    BIGINT  NOT NULL
);
CREATE TABLE role_members (
    pubkey BYTEA   NOT NULL,
    role   TEXT    NOT NULL,
    actor  TEXT    NOT NULL,
    at     BIGINT  NOT NULL,
    PRIMARY KEY (pubkey, role)
);

CREATE TABLE auth_seen (
    id    BYTEA   PRIMARY KEY,
    until BIGINT  NOT NULL
);
CREATE INDEX auth_seen_by_end ON auth_seen (until);

CREATE TABLE overrides (
    key      TEXT    PRIMARY KEY,
    value    TEXT    NOT NULL,
    revision BIGINT  NOT NULL,
    actor    TEXT    NOT NULL,
    at       BIGINT  NOT NULL
);

-- Bytes of git data that the operator gave single owners and repositories, as in SQLite.
CREATE TABLE quotas (
    subject TEXT   PRIMARY KEY,
    bytes   BIGINT NOT NULL
);

CREATE INDEX packs_by_owner ON packs (owner, identifier, bytes);

-- Bytes of git data that the operator gave single owners (their key in hex) and repositories (their coordinate).
CREATE TABLE quotas (
    subject TEXT    PRIMARY KEY NOT NULL,
    bytes   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What an owner uses, and what all use, without reading the table.
CREATE INDEX packs_by_owner ON packs (owner, identifier, bytes);

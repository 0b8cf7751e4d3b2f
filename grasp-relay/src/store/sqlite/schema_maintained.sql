-- Who maintains which served repository: its owner, and since which generation of its view. Addresses have no rows.
CREATE TABLE maintained (
    endpoint   INTEGER NOT NULL,
    identifier TEXT    NOT NULL,
    maintainer BLOB    NOT NULL,
    owner      BLOB    NOT NULL,
    since      INTEGER NOT NULL,
    PRIMARY KEY (endpoint, identifier, maintainer, owner)
) STRICT, WITHOUT ROWID;
CREATE INDEX maintained_by_age ON maintained (endpoint, identifier, maintainer, since, owner);

-- The keys of a view stand one after the other.
WITH RECURSIVE keys (endpoint, identifier, owner, since, maintainer, rest) AS (
    SELECT endpoint, identifier, owner, generation, substr(maintainers, 1, 32), substr(maintainers, 33)
        FROM views WHERE shows IS NULL
    UNION ALL
    SELECT endpoint, identifier, owner, since, substr(rest, 1, 32), substr(rest, 33) FROM keys WHERE rest <> x''
)
INSERT INTO maintained (endpoint, identifier, maintainer, owner, since)
    SELECT endpoint, identifier, maintainer, owner, since FROM keys WHERE maintainer <> x'';

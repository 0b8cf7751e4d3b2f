-- Who maintains which served repository, as in SQLite.
CREATE TABLE maintained (
    endpoint   BIGINT NOT NULL,
    identifier TEXT   NOT NULL,
    maintainer BYTEA  NOT NULL,
    owner      BYTEA  NOT NULL,
    since      BIGINT NOT NULL,
    PRIMARY KEY (endpoint, identifier, maintainer, owner)
);
CREATE INDEX maintained_by_age ON maintained (endpoint, identifier, maintainer, since, owner);

INSERT INTO maintained (endpoint, identifier, maintainer, owner, since)
    SELECT endpoint, identifier, substring(maintainers FROM at FOR 32), owner, generation
        FROM views, generate_series(1, length(maintainers), 32) at WHERE shows IS NULL;

//! Values of rows and parameters.

use std::error::Error;

use deadpool_postgres::ClientWrapper;
use rusqlite::types::Value;
use tokio_postgres::Row;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::store::engine::{Columns, Query, Unreadable};
use crate::store::keys::Position;
use crate::store::{StoreError, failure};

/// A value whose type is that of its column.
#[derive(Clone, Debug)]
pub(super) struct Param(pub(super) Value);

impl ToSql for Param {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match &self.0 {
            Value::Null => Ok(IsNull::Yes),
            Value::Integer(number) if *ty == Type::INT4 => i32::try_from(*number)?.to_sql(ty, out),
            Value::Integer(number) => number.to_sql(ty, out),
            Value::Real(number) => number.to_sql(ty, out),
            Value::Text(text) => text.to_sql(ty, out),
            Value::Blob(bytes) => bytes.to_sql(ty, out),
        }
    }

    fn accepts(ty: &Type) -> bool {
        [Type::INT8, Type::INT4, Type::TEXT, Type::BYTEA].contains(ty)
    }

    to_sql_checked!();
}

impl<'r> FromSql<'r> for Param {
    fn from_sql(ty: &Type, raw: &'r [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(match *ty {
            Type::INT4 => Value::Integer(i32::from_sql(ty, raw)?.into()),
            Type::INT8 => Value::Integer(i64::from_sql(ty, raw)?),
            Type::BYTEA => Value::Blob(Vec::from_sql(ty, raw)?),
            _ => Value::Text(String::from_sql(ty, raw)?),
        }))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(Value::Null))
    }

    fn accepts(ty: &Type) -> bool {
        <Self as ToSql>::accepts(ty)
    }
}

impl Columns for Row {
    fn value(&self, at: usize) -> Result<Value, StoreError> {
        get::<Param>(self, at).map(|Param(value)| value)
    }
}

/// Returns the rows of a query.
pub(super) async fn rows<T>(client: &ClientWrapper, query: Query<T>) -> Result<Vec<T>, StoreError> {
    let params = |values: Vec<Value>| values.into_iter().map(Param).collect::<Vec<_>>();
    let keys = query.keys.map(params);
    let values = params(query.values);
    let keys = keys.iter().map(|keys| keys as &(dyn ToSql + Sync));
    let values: Vec<_> = keys.chain(values.iter().map(|value| value as _)).collect();
    let statement = client
        .prepare_cached(&query.sql.replace('?', "$"))
        .await
        .map_err(failure)?;
    let rows = client.query(&statement, &values).await.map_err(failure)?;
    rows.iter().map(|row| (query.read)(row)).collect()
}

/// Returns a column of a row.
pub(super) fn get<'r, T: FromSql<'r>>(row: &'r Row, at: usize) -> Result<T, StoreError> {
    row.try_get(at).map_err(failure)
}

/// Returns a column of bytes of one length.
pub(super) fn bytes<const N: usize>(row: &Row, at: usize) -> Result<[u8; N], StoreError> {
    let bytes: &[u8] = get(row, at)?;
    bytes.try_into().map_err(|_| failure(Unreadable("bytes")))
}

/// Returns a column that was unsigned before it was written.
pub(super) fn unsigned(row: &Row, at: usize) -> Result<u64, StoreError> {
    Ok(get::<i64>(row, at)?.unsigned_abs())
}

/// Returns the columns `newest, id`.
pub(super) fn position(row: &Row, at: usize) -> Result<Position, StoreError> {
    Ok(Position::new(get(row, at)?, bytes(row, at + 1)?))
}

/// Returns byte strings as the elements of an array.
pub(super) fn slices<const N: usize>(keys: &[[u8; N]]) -> Vec<&[u8]> {
    keys.iter().map(|key| &key[..]).collect()
}

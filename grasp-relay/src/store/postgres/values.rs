//! Values of rows and parameters.

use std::error::Error;

use rusqlite::types::Value;
use tokio_postgres::Row;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use super::connect::failure;
use crate::store::StoreError;
use crate::store::keys::Position;

#[derive(Debug, thiserror::Error)]
#[error("the database has a row that is not readable: {0}")]
pub(super) struct Unreadable(pub(super) &'static str);

/// A parameter whose type is that of its column.
#[derive(Debug)]
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

/// Returns a column of a row.
pub(super) fn get<'r, T: FromSql<'r>>(row: &'r Row, at: usize) -> Result<T, StoreError> {
    row.try_get(at).map_err(failure)
}

/// Returns a column of bytes of one length.
pub(super) fn bytes<const N: usize>(row: &Row, at: usize) -> Result<[u8; N], StoreError> {
    let bytes: &[u8] = get(row, at)?;
    bytes.try_into().map_err(|_| failure(Unreadable("bytes")))
}

/// Returns a column of text that has a type of its own.
pub(super) fn parse<T: std::str::FromStr>(row: &Row, at: usize) -> Result<T, StoreError> {
    let text: &str = get(row, at)?;
    text.parse().map_err(|_| failure(Unreadable("text")))
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

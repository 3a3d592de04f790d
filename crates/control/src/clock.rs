//! The wall clock, in the two forms control needs: milliseconds since the epoch to store
//! and compare, RFC 3339 to show.

use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;

const MILLIS: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");

/// Now, in milliseconds since the epoch.
pub(crate) fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|d| i64::try_from(d.as_millis()).ok())
        .unwrap_or(0)
}

/// RFC 3339 in UTC with milliseconds. Times outside the calendar become the epoch.
pub(crate) fn rfc3339(ms: i64) -> String {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
        .format(MILLIS)
        .unwrap_or_else(|_| "1970-01-01T00:00:00.000Z".to_owned())
}

/// Reads RFC 3339 with any offset, to the first whole millisecond at or after it.
pub(crate) fn parse_rfc3339_ceil(text: &str) -> Option<i64> {
    let nanos = OffsetDateTime::parse(text, &Rfc3339)
        .ok()?
        .unix_timestamp_nanos();
    let floor = nanos.div_euclid(1_000_000);
    let up = i128::from(nanos.rem_euclid(1_000_000) != 0);
    i64::try_from(floor + up).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn python_and_javascript_forms_are_read() {
        assert_eq!(parse_rfc3339_ceil("1970-01-01T00:00:01Z"), Some(1000));
        assert_eq!(
            parse_rfc3339_ceil("1970-01-01T01:00:00.000001+01:00"),
            Some(1)
        );
        assert_eq!(parse_rfc3339_ceil("1970-01-01T00:00:00.001Z"), Some(1));
        assert_eq!(parse_rfc3339_ceil("1970-01-01T00:00:00"), None);
        assert_eq!(parse_rfc3339_ceil("yesterday"), None);
    }

    proptest! {
        #[test]
        fn print_then_parse_is_identity(ms in 0i64..4_000_000_000_000) {
            prop_assert_eq!(parse_rfc3339_ceil(&rfc3339(ms)), Some(ms));
        }

        #[test]
        fn any_number_prints(ms: i64) {
            prop_assert!(!rfc3339(ms).is_empty());
        }
    }
}

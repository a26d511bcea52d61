//! The head of a safetensors file, so that the tensors behind it can be written piece by piece.
//!
//! The `safetensors` library writes a file from tensors that are all in memory; we know every shape before the
//! first row is there. The text is put together here, and not from a JSON value, so that its bytes do not depend
//! on how a JSON library orders its keys.

/// A header that grows by one tensor after the other, in the order of their bytes.
#[derive(Debug, Default)]
pub(crate) struct Header {
    entries: Vec<String>,
    data_bytes: u64,
}

impl Header {
    /// Adds what `__metadata__` shall hold.
    pub(crate) fn metadata(mut self, pairs: &[(&str, &str)]) -> Header {
        let pairs: Vec<String> =
            pairs.iter().map(|(key, value)| format!("{}:{}", quoted(key), quoted(value))).collect();
        self.entries.push(format!("\"__metadata__\":{{{}}}", pairs.join(",")));
        self
    }

    /// Adds a tensor behind those before.
    pub(crate) fn tensor(mut self, name: &str, dtype: &str, shape: &[u64], element_bytes: u64) -> Header {
        let start = self.data_bytes;
        self.data_bytes += shape.iter().product::<u64>() * element_bytes;
        let end = self.data_bytes;
        let shape: Vec<String> = shape.iter().map(u64::to_string).collect();
        let name = quoted(name);
        assert!(
            !self.entries.iter().any(|entry| entry.starts_with(&format!("{name}:"))),
            "two tensors of a file are called {name}"
        );
        self.entries.push(format!(
            "{name}:{{\"dtype\":\"{dtype}\",\"shape\":[{}],\"data_offsets\":[{start},{end}]}}",
            shape.join(",")
        ));
        self
    }

    /// The eight bytes of length and the JSON, filled up with spaces so that the tensors are aligned to 8.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let mut json = format!("{{{}}}", self.entries.join(",")).into_bytes();
        json.resize(json.len().next_multiple_of(8), b' ');
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend(json);
        bytes
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use safetensors::{Dtype, SafeTensors};

    use super::*;

    #[test]
    fn the_library_reads_what_is_put_together() {
        let name = "a \"quoted\"\nname: \u{1f514}";
        let mut bytes = Header::default()
            .metadata(&[("table", name)])
            .tensor(name, "F32", &[2, 1], 4)
            .tensor("none", "BF16", &[0, 3], 2)
            .tensor("scalar", "F16", &[], 2)
            .into_bytes();
        assert!(bytes.len().is_multiple_of(8));
        bytes.extend(0..10);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(file.tensor(name).unwrap().data(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(file.tensor("none").unwrap().shape(), [0, 3]);
        let scalar = file.tensor("scalar").unwrap();
        assert_eq!((scalar.dtype(), scalar.data()), (Dtype::F16, &[8u8, 9][..]));
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["table"], name);
    }

    #[test]
    #[should_panic(expected = "two tensors of a file are called \"a\"")]
    fn a_name_stands_once() {
        let _ = Header::default().tensor("a", "F32", &[1], 4).tensor("a", "F32", &[1], 4);
    }
}

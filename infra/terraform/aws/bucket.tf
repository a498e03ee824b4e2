resource "aws_s3_bucket" "data" {
  bucket = var.bucket
}

resource "aws_s3_bucket_versioning" "data" {
  bucket = aws_s3_bucket.data.id
  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "data" {
  bucket = aws_s3_bucket.data.id
  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "aws:kms"
    }
    # One data key for many objects, because a corpus has hundreds of thousands.
    bucket_key_enabled = true
  }
}

resource "aws_s3_bucket_public_access_block" "data" {
  bucket                  = aws_s3_bucket.data.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_policy" "data" {
  bucket     = aws_s3_bucket.data.id
  policy     = module.plan.bucket_policy
  depends_on = [aws_s3_bucket_public_access_block.data]
}

resource "aws_s3_bucket_lifecycle_configuration" "data" {
  bucket     = aws_s3_bucket.data.id
  depends_on = [aws_s3_bucket_versioning.data]

  dynamic "rule" {
    for_each = module.plan.lifecycle
    content {
      id     = rule.key
      status = "Enabled"
      filter {
        prefix = rule.value.prefix
      }
      dynamic "abort_incomplete_multipart_upload" {
        for_each = rule.value.abort_days > 0 ? [rule.value.abort_days] : []
        content {
          days_after_initiation = abort_incomplete_multipart_upload.value
        }
      }
      dynamic "noncurrent_version_expiration" {
        for_each = rule.value.old_version_days > 0 ? [rule.value.old_version_days] : []
        content {
          noncurrent_days = noncurrent_version_expiration.value
        }
      }
      dynamic "expiration" {
        for_each = rule.value.delete_markers ? [true] : []
        content {
          expired_object_delete_marker = expiration.value
        }
      }
      dynamic "transition" {
        for_each = rule.value.move_days > 0 ? [rule.value.move_days] : []
        content {
          days          = transition.value
          storage_class = "STANDARD_IA"
        }
      }
    }
  }
}

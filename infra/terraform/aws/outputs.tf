output "bucket" {
  description = "URI of the bucket for dumps/, corpora/ and runs/."
  value       = "s3://${aws_s3_bucket.data.bucket}"
}

output "connect" {
  description = "The command that configures kubectl for the cluster."
  value       = "aws eks update-kubeconfig --region ${var.region} --name ${aws_eks_cluster.this.name}"
}
